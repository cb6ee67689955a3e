"""Runs code in new processes of Python that have imported torch, but nothing of this library.

To import torch takes a second or two. A server imports it once and forks a process for every run.
Where processes cannot be forked, every run is an ordinary process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

SERVER = """
import json, os, runpy, sys, traceback
import torch, torch._dynamo

def run(request):
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    code = 0
    try:
        if sys.argv[0] == "-c":
            exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.path.insert(0, os.path.dirname(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class FreshPython:
    """Runs code or scripts in processes that are forked from a server.

    Args:
        folder: Folder for the output of the processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: subprocess.Popen[str] | None = None

    def __call__(self, code: str) -> CompletedProcess[str]:
        """Run code, as ``python -c`` does."""
        if not hasattr(os, "fork"):
            return _ordinary("-c", code)
        return self._forked(["-c"], code)

    def script(self, path: Path | str, *arguments: object) -> CompletedProcess[str]:
        """Run a script with arguments."""
        command = [str(path), *map(str, arguments)]
        if not hasattr(os, "fork"):
            return _ordinary(*command)
        return self._forked(command, "")

    def _forked(self, arguments: list[str], code: str) -> CompletedProcess[str]:
        if self.server is None:
            self.server = subprocess.Popen(
                [sys.executable, "-c", SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        files = {name: self.folder / name for name in ("stdout", "stderr")}
        request = {
            "arguments": arguments,
            "code": code,
            "environment": dict(os.environ),
            "folder": os.getcwd(),
            **{name: str(path) for name, path in files.items()},
        }
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        status = int(self.server.stdout.readline())
        found = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
        return CompletedProcess(arguments, status, **found)

    def close(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.communicate()


def _ordinary(*arguments: str) -> CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
