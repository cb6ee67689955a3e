"use strict";

const token = new URLSearchParams(location.search).get("token") ?? "";
const get = (id) => document.getElementById(id);
const form = get("controls");
const canvas = get("mask");
const ink = canvas.getContext("2d", { willReadFrequently: true });
const HOLE = "rgb(230, 40, 70)";
const POLL = 300;

let photo = null;
let running = false;
let stroke = null;

async function call(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { "X-Token": token } });
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error ?? answer.statusText);
  return data;
}

const picture = (name) =>
  `/photo/${photo.id}/${name}?token=${encodeURIComponent(token)}&t=${Date.now()}`;

function say(text, isError = false) {
  get("message").textContent = text;
  get("message").classList.toggle("error", isError);
}

function task() {
  return form.elements.task.value;
}

// The photograph.

async function open(file) {
  if (!file || running) return;
  say(`opening ${file.name}`);
  try {
    photo = await call(`/photo?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
  } catch (error) {
    say(error.message, true);
    return;
  }
  hideResult();
  canvas.width = photo.preview[0];
  canvas.height = photo.preview[1];
  const before = get("before");
  before.width = photo.preview[0];
  before.height = photo.preview[1];
  before.src = picture("before.png");
  get("drop").hidden = true;
  get("view").hidden = false;
  get("settings").disabled = false;
  get("caption").textContent = `${photo.name}, ${photo.width} × ${photo.height} pixels`;
  say("");
  showTask();
}

function hideResult() {
  for (const id of ["after", "divider", "compare", "tag-before", "tag-after", "download"])
    get(id).hidden = true;
  get("before").hidden = false;
}

async function showResult(message) {
  const after = get("after");
  after.src = picture("after.png");
  await after.decode().catch(() => {});
  canvas.hidden = true;
  for (const id of ["after", "divider", "compare", "tag-before", "tag-after", "download"])
    get(id).hidden = false;
  const link = get("download");
  link.href = picture("file");
  link.download = "";
  moveDivider();
  say(message);
}

function moveDivider() {
  const share = get("compare").value;
  get("after").style.clipPath = `inset(0 0 0 ${share}%)`;
  get("divider").style.left = `${share}%`;
}

// The task.

function showTask() {
  for (const part of document.querySelectorAll(".only"))
    part.hidden = !part.classList.contains(task());
  const isMotion = get("blur").value === "motion";
  get("radius-label").textContent = isMotion ? "Length in pixels" : "Width in pixels";
  get("angle-field").hidden = !isMotion;
  if (photo && task() === "inpaint" && !running) {
    hideResult();
    canvas.hidden = false;
  } else {
    canvas.hidden = true;
  }
}

function settings() {
  const chosen = { task: task(), strength: get("strength").valueAsNumber, prior: get("prior").value };
  if (get("noise").value !== "") chosen.noise = get("noise").valueAsNumber / 100;
  if (chosen.task === "deblur") {
    const radius = get("radius").valueAsNumber;
    if (get("blur").value === "motion") chosen.motion = [radius, get("angle").valueAsNumber];
    else chosen.gaussian = radius;
  }
  if (chosen.task === "upsample") chosen.factor = Number(get("factor").value);
  return chosen;
}

// The mask: white where pixels are missing, in the size of the preview.

function place(event) {
  const box = canvas.getBoundingClientRect();
  const scale = canvas.width / box.width;
  return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale, scale];
}

function paint(event) {
  const [x, y, scale] = place(event);
  ink.globalCompositeOperation = form.elements.brush.value === "erase" ? "destination-out" : "source-over";
  ink.strokeStyle = HOLE;
  ink.lineWidth = get("size").valueAsNumber * scale;
  ink.lineCap = "round";
  ink.lineJoin = "round";
  ink.beginPath();
  ink.moveTo(...(stroke ?? [x, y]));
  ink.lineTo(x + 0.01, y);
  ink.stroke();
  stroke = [x, y];
}

canvas.addEventListener("pointerdown", (event) => {
  event.preventDefault();
  canvas.setPointerCapture(event.pointerId);
  stroke = null;
  paint(event);
});
canvas.addEventListener("pointermove", (event) => {
  if (stroke) paint(event);
});
for (const end of ["pointerup", "pointercancel"])
  canvas.addEventListener(end, () => {
    stroke = null;
  });

function mapMask(isHole) {
  const pixels = ink.getImageData(0, 0, canvas.width, canvas.height);
  const data = pixels.data;
  for (let i = 0; i < data.length; i += 4) {
    const hole = isHole(data[i], data[i + 1], data[i + 2], data[i + 3]);
    data[i] = 230;
    data[i + 1] = 40;
    data[i + 2] = 70;
    data[i + 3] = hole ? 255 : 0;
  }
  ink.putImageData(pixels, 0, 0);
}

async function loadMask(file) {
  if (!file) return;
  try {
    const image = await createImageBitmap(file);
    ink.globalCompositeOperation = "copy";
    ink.drawImage(image, 0, 0, canvas.width, canvas.height);
    mapMask((r, g, b, a) => a > 127 && r + g + b < 384);
    say("mask loaded: black is missing");
  } catch {
    say(`${file.name} cannot be read as a mask`, true);
  }
}

function maskFile() {
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  const pen = copy.getContext("2d");
  const pixels = ink.getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < pixels.data.length; i += 4) {
    const light = pixels.data[i + 3] > 64 ? 255 : 0;
    pixels.data.set([light, light, light, 255], i);
  }
  pen.putImageData(pixels, 0, 0);
  return new Promise((resolve) => copy.toBlob(resolve, "image/png"));
}

// The work.

async function restore() {
  if (!photo || running) return;
  running = true;
  showRunning();
  say("beginning");
  try {
    const parts = [JSON.stringify(settings()), "\n"];
    if (task() === "inpaint") parts.push(await maskFile());
    let work = await call(`/photo/${photo.id}/restore`, { method: "POST", body: new Blob(parts) });
    while (work.state === "running") {
      say(work.message);
      if (work.share === null) get("progress").removeAttribute("value");
      else get("progress").value = work.share;
      await new Promise((resolve) => setTimeout(resolve, POLL));
      work = await call(`/photo/${photo.id}/work`);
    }
    if (work.state === "done") await showResult(work.message);
    else say(work.message, work.state === "failed");
  } catch (error) {
    say(error.message, true);
  }
  running = false;
  showRunning();
}

function showRunning() {
  get("progress").hidden = !running;
  get("cancel").hidden = !running;
  get("restore").disabled = running;
  get("open").disabled = running;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  restore();
});
form.addEventListener("change", (event) => {
  if (event.target.name === "task" || event.target.id === "blur") showTask();
});
get("cancel").addEventListener("click", () => call("/cancel", { method: "POST", body: "" }));
get("open").addEventListener("change", (event) => open(event.target.files[0]));
get("load-mask").addEventListener("change", (event) => loadMask(event.target.files[0]));
get("clear").addEventListener("click", () => ink.clearRect(0, 0, canvas.width, canvas.height));
get("invert").addEventListener("click", () => mapMask((r, g, b, a) => a <= 64));
get("compare").addEventListener("input", moveDivider);
for (const id of ["strength", "size"]) {
  const show = () => {
    get(`${id}-value`).textContent = get(id).value;
  };
  get(id).addEventListener("input", show);
  show();
}

const stage = get("stage");
for (const type of ["dragenter", "dragover"])
  document.addEventListener(type, (event) => {
    event.preventDefault();
    stage.classList.add("over");
  });
for (const type of ["dragleave", "drop"])
  document.addEventListener(type, (event) => {
    event.preventDefault();
    stage.classList.remove("over");
  });
document.addEventListener("drop", (event) => open(event.dataTransfer.files[0]));



