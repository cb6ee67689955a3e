"""The server of the app answers this computer's page, and nobody else."""

from __future__ import annotations

import http.client
import io
import json
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from mirrordescent.app import AppServer, server as server_module, work as work_module
from mirrordescent.app.work import read_request

pytestmark = pytest.mark.usefixtures("compiled")


@contextmanager
def running():
    with AppServer(fused=None) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


@pytest.fixture
def app():
    with running() as server:
        yield server


def ask(server, method, path, body=None, headers=None, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.port}")
    for name, value in ({"X-Token": server.token} if headers is None else headers).items():
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def data(server, method, path, body=None):
    answer, content = ask(server, method, path, body)
    return answer.status, json.loads(content)


def picture(height=48, width=40, kind="png", noise=0.08, **options):
    rows, columns = np.mgrid[:height, :width]
    smooth = 0.5 + 0.3 * np.sin(rows / 9 + columns / 7)
    noisy = smooth[..., None] + noise * np.random.default_rng(0).standard_normal((height, width, 3))
    file = io.BytesIO()
    Image.fromarray((noisy.clip(0, 1) * 255).astype(np.uint8)).save(file, kind, **options)
    return file.getvalue()


def finished(server, identifier, seconds=60):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _, work = data(server, "GET", f"/photo/{identifier}/work")
        if work["state"] != "running":
            return work
        time.sleep(0.05)
    raise TimeoutError(work)


def restored(server, content, name, options, mask=b""):
    status, photo = data(server, "POST", f"/photo?name={name}", content)
    assert status == 200
    body = json.dumps(options).encode() + b"\n" + mask
    status, _ = data(server, "POST", f"/photo/{photo['id']}/restore", body)
    assert status == 200
    return photo, finished(server, photo["id"])


def test_a_photograph_comes_back_in_its_format(app):
    exif = Image.Exif()
    exif[271] = "camera"
    content = picture(kind="jpeg", quality=95, exif=exif)
    photo, work = restored(app, content, "a%20b.jpg", {"task": "denoise"})
    assert work["state"] == "done", work
    assert work["message"].startswith("noise about")
    answer, file = ask(app, "GET", f"/photo/{photo['id']}/file")
    assert answer.headers["Content-Disposition"].endswith("a%20b-restored.jpg")
    with Image.open(io.BytesIO(file)) as result:
        assert (result.format, result.size) == ("JPEG", (40, 48))
        assert result.getexif()[271] == "camera"
        after = np.asarray(result, float)
    with Image.open(io.BytesIO(content)) as given:
        before = np.asarray(given, float)
    assert np.abs(np.diff(after, axis=0)).mean() < 0.7 * np.abs(np.diff(before, axis=0)).mean()
    for name in ("before.png", "after.png"):
        answer, shown = ask(app, "GET", f"/photo/{photo['id']}/{name}")
        assert answer.headers["Content-Type"] == "image/png"
        assert Image.open(io.BytesIO(shown)).size == (40, 48)


def test_holes_of_a_mask_in_the_size_of_the_preview_are_filled(app, monkeypatch):
    monkeypatch.setattr(work_module, "PREVIEW_SIDE", 24)
    mask = np.zeros((24, 20), np.uint8)
    mask[8:10, 4:16] = 255
    file = io.BytesIO()
    Image.fromarray(mask).save(file, "png")
    content = picture(noise=0.0)
    photo, work = restored(app, content, "a.png", {"task": "inpaint"}, file.getvalue())
    assert photo["preview"] == [20, 24]
    assert work["state"] == "done", work
    assert "missing" in work["message"]
    _, file = ask(app, "GET", f"/photo/{photo['id']}/file")
    after = np.asarray(Image.open(io.BytesIO(file)), int)
    before = np.asarray(Image.open(io.BytesIO(content)), int)
    changed = np.abs(after - before).max(-1) > 0
    assert changed[17:19, 10:30].any()
    assert not changed[:12].any()
    assert not changed[26:].any()
    photo, work = restored(app, content, "a.png", {"task": "inpaint"})
    assert work["state"] == "failed"
    assert "no missing pixels are given" in work["message"]


@pytest.mark.parametrize(
    ("headers", "host", "path", "status"),
    [
        ({}, None, "/", 403),
        ({"X-Token": "guess"}, None, "/", 403),
        (None, "evil.example", "/", 403),
        (None, "evil.example", "/app.js", 403),
        (None, None, "/photo/none/file", 404),
        (None, None, "/../server.py", 404),
        (None, None, "/", 200),
        ({}, None, "/app.js", 200),
    ],
)
def test_only_the_page_of_this_server_is_answered(app, headers, host, path, status):
    answer, content = ask(app, "GET", path, headers=headers, host=host)
    assert answer.status == status
    assert app.token.encode() not in content
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_other_pages_may_not_ask(app):
    headers = {"X-Token": app.token, "Origin": "https://evil.example"}
    answer, _ = ask(app, "POST", "/photo?name=a.png", picture(), headers)
    assert answer.status == 403
    assert not app.studio.photos
    headers["Origin"] = f"http://127.0.0.1:{app.port}"
    answer, _ = ask(app, "POST", "/photo?name=a.png", picture(), headers)
    assert answer.status == 200


def test_the_server_listens_on_loopback_only(app):
    assert app._http.server_address[0] == "127.0.0.1"


def test_large_and_wrong_uploads_are_refused(app, monkeypatch):
    status, answer = data(app, "POST", "/photo?name=a.png", b"no image")
    assert status == 400
    assert answer["error"] == "a.png is not an image of a known format"
    monkeypatch.setattr(server_module, "LARGEST_UPLOAD", 100)
    status, answer = data(app, "POST", "/photo?name=a.png", bytes(101))
    assert status == 413
    answer, _ = ask(app, "POST", "/photo?name=a.png")
    assert answer.status == 411
    assert not list(app.studio.folder.iterdir())


def test_wrong_settings_are_explained(app):
    _, photo = data(app, "POST", "/photo?name=a.png", picture())
    for options, message in (
        ({"task": "paint"}, "task must be one of"),
        ({"task": "denoise", "strength": "much"}, "must be a number"),
        ({"task": "denoise", "prior": "/etc/passwd"}, "prior must be"),
        ({"task": "deblur", "gaussian": 1e9}, "from 0.3 to 20"),
        ([], "JSON object"),
    ):
        body = json.dumps(options).encode()
        status, answer = data(app, "POST", f"/photo/{photo['id']}/restore", body)
        assert status == 400
        assert message in answer["error"]


def test_requests_stand_for_settings():
    request = read_request({"task": "deblur", "motion": [9, 90], "noise": 0.02, "strength": 0.5})
    assert request.degradation.kernel.shape[0] % 2 == 1
    assert float(request.degradation.kernel[:, 0].sum()) == pytest.approx(0, abs=1e-6)
    assert (request.noise, request.strength) == (0.02, 0.5)
    assert read_request({"task": "upsample", "factor": 3}).degradation.factor == 3


def test_work_is_cancelled_and_one_photograph_is_restored_at_a_time(app, held_work):
    _, photo = data(app, "POST", "/photo?name=a.png", picture())
    options = json.dumps({"task": "deblur", "gaussian": 2.0}).encode()
    with held_work():
        assert data(app, "POST", f"/photo/{photo['id']}/restore", options)[0] == 200
        status, answer = data(app, "POST", f"/photo/{photo['id']}/restore", options)
        assert status == 409
        assert "another photograph" in answer["error"]
        assert data(app, "POST", "/cancel", b"")[0] == 200
        assert finished(app, photo["id"])["state"] == "cancelled"
    assert data(app, "POST", f"/photo/{photo['id']}/restore", b'{"task": "denoise"}')[0] == 200
    assert finished(app, photo["id"])["state"] == "done"


def test_old_photographs_and_the_folder_are_removed():
    with running() as server:
        for _ in range(work_module.KEPT + 2):
            data(server, "POST", "/photo?name=a.png", picture())
        assert len(server.studio.photos) == work_module.KEPT
        assert len(list(server.studio.folder.iterdir())) == work_module.KEPT
        folder = server.studio.folder
    assert not folder.exists()


def test_closing_the_server_ends_the_work_first(held_work):
    with held_work():
        with running() as server:
            _, photo = data(server, "POST", "/photo?name=a.png", picture())
            options = json.dumps({"task": "deblur", "gaussian": 2.0}).encode()
            assert data(server, "POST", f"/photo/{photo['id']}/restore", options)[0] == 200
            work = server.studio.photos[photo["id"]].work
        assert work.state == "cancelled"
        assert not server.studio.folder.exists()


def test_a_port_in_use_is_explained(app):
    with pytest.raises(OSError, match="Choose another one with --port"):
        AppServer(app.port)
