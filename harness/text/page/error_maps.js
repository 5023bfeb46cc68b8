// Draws each variant's errors, and says what the cell under the pointer, or under the keyboard's cursor, holds.
const maps = JSON.parse(document.getElementById("error-maps-data").textContent);
const canvases = [...document.querySelectorAll("#error-maps canvas")];
const panel = document.getElementById("error-panel");
const scale = document.getElementById("error-scale");
const figure = document.getElementById("error-figure");
const cursors = new Map();

const places = new Map();
for (const outputs of Object.values(maps)) {
  for (const map of outputs) {
    for (const one of map.panels) {
      const name = one.place ? `${map.output}, ${one.place}` : map.output;
      if (!places.has(name)) places.set(name, [map.output, one.place]);
    }
  }
}
for (const name of places.keys()) panel.add(new Option(name, name));

function shown(canvas) {
  const [output, place] = places.get(panel.value);
  const map = maps[canvas.dataset.variant].find((each) => each.output === output);
  const one = map && map.panels.find((each) => each.place === place);
  return one && one.cells.length ? { map, cells: one.cells } : null;
}
const numbers = (cells) => cells.flat().filter((value) => typeof value === "number");
const largest = (cells) => numbers(cells).reduce((a, b) => Math.max(a, b), 0);
const worst = (cells) => cells.flat().find((value) => typeof value !== "number") ?? largest(cells);
const text = (value) => (typeof value === "number" ? value.toPrecision(3).replace(/\.?0+(e|$)/, "$1") : value);

// Colours are the style sheet's. A hidden canvas turns their names into numbers.
function colours() {
  const style = getComputedStyle(document.documentElement);
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (name) => {
    pen.fillStyle = style.getPropertyValue(name).trim();
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  return { low: rgb("--panel"), high: rgb("--warm"), bad: rgb("--bad"), cursor: style.getPropertyValue("--fg") };
}

function draw() {
  const palette = colours();
  const most = Math.max(...canvases.map((canvas) => { const at = shown(canvas); return at ? largest(at.cells) : 0; }));
  for (const canvas of canvases) {
    const at = shown(canvas);
    canvas.parentElement.querySelector("span").textContent = at ? `largest ${text(worst(at.cells))}` : "not shown";
    if (!at) { canvas.width = canvas.height = 1; continue; }
    const [rows, columns] = [at.cells.length, at.cells[0].length];
    [canvas.width, canvas.height] = [columns, rows];
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(columns, rows);
    const whole = scale.value === "own" ? largest(at.cells) : most;
    at.cells.flat().forEach((value, index) => {
      const wrong = typeof value !== "number" || value > 1;
      const share = whole > 0 && !wrong ? value / whole : 0;
      const rgb = wrong ? palette.bad : palette.low.map((low, n) => low + (palette.high[n] - low) * share);
      image.data.set([...rgb, 255], 4 * index);
    });
    pen.putImageData(image, 0, 0);
    const cursor = cursors.get(canvas);
    if (cursor && canvas === document.activeElement) {
      pen.fillStyle = palette.cursor;
      pen.fillRect(cursor.column, cursor.row, 1, 1);
    }
  }
}

const span = (index, size, extent) => {
  const last = Math.min((index + 1) * size, extent) - 1;
  return last === index * size ? `${last}` : `${index * size} to ${last}`;
};
function say(canvas, row, column) {
  const at = shown(canvas);
  if (!at) return;
  const { axes, cell, extents } = at.map;
  const where = [
    axes[0] && `${axes[0]}s ${span(row, cell[0], extents[0])}`, `${axes[1]}s ${span(column, cell[1], extents[1])}`,
  ].filter(Boolean).join(", ");
  figure.textContent = `${canvas.dataset.variant}, ${panel.value}, ${where}: ${text(at.cells[row][column])} x budget`;
}
const within = (value, count) => Math.max(0, Math.min(count - 1, value));

for (const canvas of canvases) {
  canvas.addEventListener("pointermove", (event) => {
    const at = shown(canvas);
    if (!at) return;
    const box = canvas.getBoundingClientRect();
    const [rows, columns] = [at.cells.length, at.cells[0].length];
    say(
      canvas,
      within(Math.floor((event.clientY - box.top) / box.height * rows), rows),
      within(Math.floor((event.clientX - box.left) / box.width * columns), columns),
    );
  });
  canvas.addEventListener("focus", () => {
    if (!cursors.has(canvas)) cursors.set(canvas, { row: 0, column: 0 });
    const { row, column } = cursors.get(canvas);
    say(canvas, row, column);
    draw();
  });
  canvas.addEventListener("blur", draw);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const at = shown(canvas);
    if (!step || !at) return;
    event.preventDefault();
    const cursor = cursors.get(canvas);
    cursor.row = within(cursor.row + step[0], at.cells.length);
    cursor.column = within(cursor.column + step[1], at.cells[0].length);
    say(canvas, cursor.row, cursor.column);
    draw();
  });
}
panel.addEventListener("change", () => { cursors.clear(); figure.textContent = ""; draw(); });
scale.addEventListener("change", draw);
document.addEventListener("themechange", draw);
document.getElementById("errors-controls").hidden = false;
document.getElementById("error-maps").hidden = false;
draw();
