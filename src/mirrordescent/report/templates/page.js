"use strict";
document.documentElement.classList.add("scripted");

const LIGHT = ["#2f66a8", "#d0661b", "#2f8f56", "#b83246", "#7a56b0", "#8a5a3c", "#c24f93", "#5f6b78", "#978a10", "#1590a5"];
const DARK = ["#79aee8", "#f3a25f", "#72cf97", "#f08392", "#b79ce6", "#c99a7c", "#ee93c8", "#a9b4bf", "#d3c653", "#5cc8da"];
const DASHES = [[], [7, 4], [2, 3]];
const darkness = matchMedia("(prefers-color-scheme: dark)");
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* Pictures laid over each other, with a slider for where one ends and the other begins. */

function comparison(root) {
  const [sceneChoice, leftChoice, rightChoice] = ["scene", "left", "right"].map((n) => root.querySelector(`.${n}-choice`));
  const viewer = root.querySelector(".viewer");
  const slider = viewer.querySelector("input");
  const fullSize = root.querySelector(".full-size");
  const panes = root.querySelector(".panes");
  const scenes = [...root.querySelectorAll(".scene")];
  const thumbnails = (scene) => [...scene.querySelectorAll(".thumbnail")];
  const current = () => scenes.find((scene) => !scene.hidden);

  function showScene() {
    scenes.forEach((scene, i) => { scene.hidden = i !== sceneChoice.selectedIndex; });
    const names = thumbnails(current()).map((t) => t.dataset.name);
    const keep = (choice, wanted, otherwise) => {
      const name = [choice.value, wanted].find((each) => names.includes(each)) ?? otherwise;
      choice.replaceChildren(...names.map((each) => new Option(each, each, false, each === name)));
    };
    keep(leftChoice, root.dataset.before, names[0]);
    keep(rightChoice, root.dataset.after, names.at(-1));
    showPictures();
  }

  function showPictures() {
    for (const [side, choice] of [["left", leftChoice], ["right", rightChoice]]) {
      const source = thumbnails(current())[choice.selectedIndex].querySelector("img");
      const target = viewer.querySelector(`.${side}`);
      for (const name of ["src", "width", "height", "alt"]) target.setAttribute(name, source.getAttribute(name));
      const whole = panes.querySelector(`.pane-${side}`);
      for (const name of ["src", "width", "height", "alt"]) whole.setAttribute(name, source.getAttribute(name));
      whole.closest("figure").querySelector("figcaption").textContent = choice.value;
      viewer.classList.toggle("small", source.getAttribute("width") < 400);
      viewer.style.setProperty("--aspect", source.getAttribute("width") / source.getAttribute("height"));
    }
    thumbnails(current()).forEach((t, i) => t.setAttribute("aria-pressed", i === rightChoice.selectedIndex));
    showCut();
  }

  function showCut() {
    viewer.style.setProperty("--cut", `${slider.value}%`);
    slider.setAttribute("aria-valuetext", `${slider.value} % ${leftChoice.value}, ${100 - slider.value} % ${rightChoice.value}`);
  }

  fullSize.addEventListener("click", () => {
    const full = panes.hidden;
    fullSize.setAttribute("aria-pressed", full);
    panes.hidden = !full;
    viewer.hidden = full;
  });
  const [first, second] = panes.querySelectorAll(".pane");
  for (const [one, other] of [[first, second], [second, first]]) {
    one.addEventListener("scroll", () => {
      if (other.scrollLeft !== one.scrollLeft) other.scrollLeft = one.scrollLeft;
      if (other.scrollTop !== one.scrollTop) other.scrollTop = one.scrollTop;
    });
    one.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "mouse" || event.buttons !== 1) return;
      one.scrollLeft -= event.movementX;
      one.scrollTop -= event.movementY;
    });
  }

  sceneChoice.addEventListener("change", showScene);
  leftChoice.addEventListener("change", showPictures);
  rightChoice.addEventListener("change", showPictures);
  slider.addEventListener("input", showCut);
  root.addEventListener("click", (event) => {
    const thumbnail = event.target.closest(".thumbnail");
    if (!thumbnail) return;
    rightChoice.value = thumbnail.dataset.name;
    showPictures();
  });
  showScene();
}

/* Pictures in an order, one at a time. */

function strip(root) {
  const slider = root.querySelector("input");
  const figures = [...root.querySelectorAll("figure")];
  const show = () => {
    figures.forEach((figure, i) => figure.classList.toggle("shown", i === Number(slider.value)));
    slider.setAttribute("aria-valuetext", figures[slider.value].querySelector("figcaption").textContent.trim());
  };
  slider.addEventListener("input", show);
  show();
}

/* Curves: the axis can be chosen, the legend shows and hides, the view can be zoomed and moved. */

const short = (value) => {
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(4)));
};
const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const power = (exponent) => "10" + [...String(exponent)].map((c) => SUPERSCRIPT[c]).join("");

function logarithmicLabel(value, _, ticks) {
  const exponent = Math.log10(value);
  const decade = Math.abs(exponent - Math.round(exponent)) < 1e-9;
  if (decade) return exponent > -3 && exponent < 4 ? String(Number(value.toPrecision(3))) : power(Math.round(exponent));
  const range = ticks.at(-1).value / ticks[0].value;
  return range < 5 || (range < 300 && /^[25](\.0+)?e/.test(value.toExponential())) ? short(value) : "";
}

function axis(type, label) {
  const logarithmic = type === "log";
  return {
    type: logarithmic ? "logarithmic" : "linear",
    title: { display: Boolean(label), text: label, color: token("--quiet") },
    border: { color: token("--quiet") },
    grid: { color: ({ tick }) => (tick?.label === "" ? "transparent" : token("--line")), tickColor: token("--line") },
    ticks: {
      color: token("--quiet"), maxRotation: 0,
      ...(logarithmic ? { callback: logarithmicLabel } : { maxTicksLimit: 8 }),
    },
  };
}

function chart(root) {
  const data = JSON.parse(root.querySelector("script").textContent);
  const canvas = root.querySelector("canvas");
  const shown = data.series.map(() => true);
  const highest = Math.max(...data.series.flatMap((series) => series.points.map((p) => p[data.axes.length])));
  const top = data.ceiling && highest > data.ceiling ? data.ceiling : undefined;
  let against = data.against;
  const colour = (i) => (darkness.matches ? DARK : LIGHT)[i % LIGHT.length];
  const dash = (i) => DASHES[Math.floor(i / LIGHT.length) % DASHES.length];

  const point = (p) => {
    const x = p[data.axes.indexOf(against)];
    const [y, low, high] = p.slice(data.axes.length);
    return { x: data.scales[0] === "log" && x <= 0 ? NaN : x, y: y ?? NaN, low, high, point: p };
  };
  const datasets = () => data.series.map((series, i) => ({
    label: series.name, data: series.points.map(point), hidden: !shown[i], showLine: data.lines,
    borderColor: colour(i), backgroundColor: colour(i), borderDash: dash(i), borderWidth: 2, pointRadius: data.lines ? 0 : 2.5,
    pointHitRadius: 10, pointHoverRadius: 4,
  }));
  const scales = () => ({ x: axis(data.scales[0], against), y: { ...axis(data.scales[1]), max: top } });

  const described = ({ dataset, raw }) => {
    const where = data.axes.map((name, i) => `${name} ${short(raw.point[i])}`).join(", ");
    const range = raw.low < raw.high ? ` (${short(raw.low)} … ${short(raw.high)})` : "";
    return [`${dataset.label}: ${short(raw.y)}${range}`, where];
  };
  Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
  Chart.defaults.font.size = 13;
  const drawn = new Chart(canvas, {
    type: "line",
    data: { datasets: datasets() },
    options: {
      animation: false, responsive: true, maintainAspectRatio: false, normalized: true, parsing: true,
      interaction: { mode: "nearest", intersect: false },
      scales: scales(),
      plugins: {
        legend: { display: false },
        tooltip: { displayColors: false, callbacks: { title: () => "", label: described } },
        zoom: {
          zoom: {
            mode: "xy", drag: { enabled: true, threshold: 6, backgroundColor: "rgb(110 140 180 / 20%)" },
            pinch: { enabled: true }, wheel: { enabled: true, modifierKey: "ctrl" },
          },
          pan: { enabled: true, mode: "xy", modifierKey: "shift" },
        },
      },
    },
  });

  function redraw() {
    drawn.resetZoom("none");
    drawn.data.datasets = datasets();
    drawn.options.scales = scales();
    drawn.update("none");
  }

  const moves = {
    "+": () => drawn.zoom(1.4), "=": () => drawn.zoom(1.4), "-": () => drawn.zoom(1 / 1.4), "0": () => drawn.resetZoom(),
    ArrowLeft: () => drawn.pan({ x: 50 }), ArrowRight: () => drawn.pan({ x: -50 }),
    ArrowUp: () => drawn.pan({ y: 50 }), ArrowDown: () => drawn.pan({ y: -50 }),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    moves[event.key]();
  });
  for (const [name, key] of [["in", "+"], ["out", "-"], ["reset", "0"]]) {
    root.querySelector(`[data-zoom="${name}"]`).addEventListener("click", moves[key]);
  }
  root.addEventListener("change", (event) => { against = event.target.value; redraw(); });
  darkness.addEventListener("change", () => { redraw(); drawLegend(); });

  function drawLegend() {
    root.querySelector(".legend").replaceChildren(...data.series.map((series, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", shown[i]);
      button.innerHTML = `<svg viewBox="0 0 26 10" aria-hidden="true"><line x1="0" x2="26" y1="5" y2="5" stroke-width="3"/></svg>`;
      const line = button.querySelector("line");
      line.setAttribute("stroke", colour(i));
      line.setAttribute("stroke-dasharray", dash(i).join(" "));
      button.append(series.name);
      button.addEventListener("click", () => {
        shown[i] = !shown[i];
        button.setAttribute("aria-pressed", shown[i]);
        drawn.setDatasetVisibility(i, shown[i]);
        drawn.update("none");
      });
      return button;
    }));
  }
  drawLegend();
}

document.querySelectorAll(".comparison").forEach(comparison);
document.querySelectorAll(".strip").forEach(strip);
document.querySelectorAll(".chart").forEach(chart);
