// Plays what blocks do. The clock is bytes: at any time both sides have moved as many, so the one that moves more in all
// takes longer.
const replays = JSON.parse(document.getElementById("replay-data").textContent);
const control = (name) => document.getElementById(`replay-${name}`);
const [play, slider, speed] = [control("play"), control("position"), control("speed")];
const SECONDS = 40; // for the longer side, at speed 1
const LABEL = 34, GAP = 14, TALLEST = 230;
const whole = new Intl.NumberFormat("en");
const bytes = (count) => `${whole.format(count)} bytes`;
const reduce = (touches) => touches.reduce((sum, touch) => sum + touch[1], 0);

// One variant's steps with what was read and written before each, and, filled in as it plays, how often tiles were touched.
class Track {
  constructor(name) {
    Object.assign(this, replays[name], { name });
    this.before = [0];
    this.read = [0];
    let held = [];
    this.held = this.steps.map((step) => (held = step[4] === 0 ? held : step[4]));
    for (const [, , reads, writes] of this.steps) {
      this.before.push(this.before.at(-1) + reduce(reads) + reduce(writes));
      this.read.push(this.read.at(-1) + reduce(reads));
    }
    this.total = this.before.at(-1);
    this.forget();
  }
  forget() {
    this.known = 0;
    this.counts = this.matrices.map(([, , rows, columns]) => ({
      rows: Math.min(rows, 128), columns: Math.min(columns, 64), most: 0,
      cells: new Uint16Array(Math.min(rows, 128) * Math.min(columns, 64)),
    }));
  }
  // The step that is under way when so many bytes have been moved: the last one that has begun, or -1 at the start.
  at(position) {
    if (position <= 0) return -1;
    let [low, high] = [0, this.steps.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.before[middle + 1] >= position) high = middle; else low = middle + 1;
    }
    return low;
  }
  // How often each cell was touched before a step.
  touched(step) {
    if (step < this.known) this.forget();
    for (; this.known < step; this.known++) {
      const [, , reads, writes] = this.steps[this.known];
      for (const touch of [...reads, ...writes]) this.count(touch);
    }
    return this.counts;
  }
  count(touch) {
    const [, , rows, columns] = this.matrices[touch[0]];
    const grid = this.counts[touch[0]];
    for (let n = 2; n < touch.length; n += 4) {
      const [top, left] = [Math.floor(touch[n] * grid.rows / rows), Math.floor(touch[n + 2] * grid.columns / columns)];
      const bottom = Math.ceil(touch[n + 1] * grid.rows / rows), right = Math.ceil(touch[n + 3] * grid.columns / columns);
      for (let row = top; row < bottom; row++) {
        for (let column = left; column < right; column++) {
          const count = ++grid.cells[row * grid.columns + column];
          if (count > grid.most) grid.most = count;
        }
      }
    }
  }
}

class Side {
  constructor(name) {
    this.choice = control(name);
    this.box = control(`${name}-side`);
    [this.head, this.sum, this.bar, this.canvas, this.text] =
      ["h3", ".replay-total", ".replay-bar span", "canvas", ".replay-step"].map((each) => this.box.querySelector(each));
    this.choose();
  }
  choose() {
    this.track = this.choice.value ? new Track(this.choice.value) : null;
    this.box.hidden = !this.track;
    this.head.textContent = this.choice.value;
  }
  show(position) {
    const track = this.track;
    if (!track) return;
    const step = track.at(position);
    const moved = Math.max(0, Math.min(position, track.total));
    let read = 0;
    if (step >= 0) {
      const [start, end] = [track.before[step], track.before[step + 1]];
      const share = end > start ? (moved - start) / (end - start) : 1;
      read = track.read[step] + Math.round((track.read[step + 1] - track.read[step]) * share / 32) * 32;
    }
    const written = Math.max(0, Math.round((moved - read) / 32) * 32);
    this.box.dataset.step = step;
    this.box.dataset.read = read;
    this.box.dataset.written = written;
    this.sum.textContent = `read ${bytes(read)}, written ${bytes(written)}, of ${bytes(track.total)} in all`;
    this.bar.parentElement.style.width = `${100 * track.total / longest()}%`;
    this.bar.style.width = `${100 * moved / Math.max(1, track.total)}%`;
    const lines = describe(track, step);
    this.text.replaceChildren(Object.assign(document.createElement("b"), { textContent: lines[0] }),
      ...lines.slice(1).flatMap((line) => [document.createElement("br"), line]));
    this.canvas.setAttribute("aria-label", `${track.name}. ${lines.join(". ")}`);
    draw(this.canvas, track, step);
  }
}

function rowsOf(matrix, numbers) {
  const [name, , rows, columns] = matrix;
  const spans = [];
  for (let n = 0; n < numbers.length; n += 4) {
    const [first, end, left, right] = numbers.slice(n, n + 4);
    const all = left === 0 && right === columns;
    spans.push((first === 0 && end === rows ? "all rows" : first + 1 === end ? `row ${first}` : `rows ${first} to ${end - 1}`)
      + (all ? "" : `, columns ${left} to ${right - 1}`));
  }
  const more = spans.length > 3 ? ` and ${spans.length - 3} more pieces` : "";
  return spans.length ? `${name} ${spans.slice(0, 3).join("; ")}${more}` : `${name}`;
}
function describe(track, index) {
  if (index < 0) return ["Before the first step"];
  const [launch, block, reads, writes] = track.steps[index];
  const [kernel, blocks, shown] = track.launches[launch];
  const where = block < 0 ? `${kernel}, the other ${whole.format(blocks - shown)} blocks together`
    : `${kernel}, block ${block} of ${whole.format(blocks)}`;
  const lines = [`Step ${index + 1} of ${track.steps.length}: ${where}`];
  const say = (verb, list, skip) => {
    if (list.length) lines.push(`${verb} ${list.map((each) => rowsOf(track.matrices[each[0]], each.slice(skip))).join(", ")}`);
  };
  say("reads", reads, 2);
  say("writes", writes, 2);
  say("holds", track.held[index], 1);
  return lines;
}

// Where each matrix is drawn: side by side, in as many rows as it takes, with its proportions as far as they can be seen.
function layOut(matrices, width) {
  const tallest = Math.max(...matrices.map(([, , rows]) => rows));
  const places = [];
  let [x, y, line] = [0, 0, 0];
  const drawn = matrices.map(([name, , rows, columns], index) => ({ index, name, rows, columns })).filter(({ rows }) => rows);
  const heightOf = (rows) => Math.max(18, TALLEST * rows / tallest);
  const least = ({ name }) => Math.max(14, 7.5 * name.length);
  // Wider, or narrower, than they are, as far as that brings all of them into one row and no further.
  const natural = drawn.reduce((sum, { rows, columns }) => sum + heightOf(rows) * columns / rows, 0);
  const stretch = Math.max(.5, Math.min(1.8, (width - GAP * drawn.length - 14) / natural));
  drawn.forEach(({ index, name, rows, columns }) => {
    let high = heightOf(rows);
    const wide = Math.round(Math.max(14, Math.min(high * columns / rows * stretch, width)));
    high = Math.round(Math.min(high, Math.max(18, 2 * width * rows / columns)));
    const taken = Math.max(wide, least({ name }));
    if (x && x + taken > width) { [x, y, line] = [0, y + line + LABEL, 0]; }
    places.push({ index, name, x, y: y + 18, wide, high });
    x += taken + GAP;
    line = Math.max(line, high);
  });
  return { places, high: y + line + LABEL - 8 };
}

function draw(canvas, track, step) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const [panel, line, fg, cool, warm, good] = ["panel", "line", "fg", "cool", "warm", "good"].map(colour);
  const width = Math.max(200, canvas.parentElement.clientWidth);
  const { places, high } = layOut(track.matrices, width);
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(high * scale)) {
    [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(high * scale)];
    canvas.style.height = `${high}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, high);
  pen.font = "600 12px system-ui, sans-serif";
  const counts = track.touched(Math.max(0, step));
  const [, , reads, writes] = step < 0 ? [0, 0, [], []] : track.steps[step];
  for (const place of places) {
    const [, , rows, columns] = track.matrices[place.index];
    const tile = (top, bottom, left, right) => [
      place.x + left / columns * place.wide, place.y + top / rows * place.high,
      Math.max(1.5, (right - left) / columns * place.wide), Math.max(1.5, (bottom - top) / rows * place.high)];
    const each = (lists, skip, paint) => {
      for (const list of lists) {
        if (list[0] === place.index) for (let n = skip; n < list.length; n += 4) paint(...tile(...list.slice(n, n + 4)));
      }
    };
    pen.fillStyle = fg;
    pen.fillText(place.name, place.x, place.y - 6);
    pen.fillStyle = panel;
    pen.fillRect(place.x, place.y, place.wide, place.high);
    const grid = counts[place.index];
    pen.fillStyle = fg;
    for (let row = 0; row < grid.rows; row++) {
      for (let column = 0; column < grid.columns; column++) {
        const count = grid.cells[row * grid.columns + column];
        if (!count) continue;
        pen.globalAlpha = .08 + .42 * Math.log1p(count) / Math.log1p(Math.max(8, grid.most));
        // Edges on whole pixels, so that cells neither overlap nor leave gaps.
        const [x, right] = [column, column + 1].map((edge) => Math.round(place.x + edge / grid.columns * place.wide));
        const [y, bottom] = [row, row + 1].map((edge) => Math.round(place.y + edge / grid.rows * place.high));
        pen.fillRect(x, y, right - x, bottom - y);
      }
    }
    pen.globalAlpha = 1;
    each(writes, 2, (...box) => { pen.fillStyle = panel; pen.fillRect(...box); });
    each(reads, 2, (...box) => { pen.fillStyle = cool; pen.fillRect(...box); });
    each(writes, 2, (...box) => stripes(pen, warm, ...box));
    pen.strokeStyle = line;
    pen.lineWidth = 1;
    pen.strokeRect(place.x + .5, place.y + .5, place.wide - 1, place.high - 1);
    each(step < 0 ? [] : track.held[step], 1, (x, y, wide, tall) => {
      pen.strokeStyle = good;
      pen.lineWidth = 2.5;
      pen.strokeRect(x + 1.25, y + 1.25, Math.max(1, wide - 2.5), Math.max(1, tall - 2.5));
    });
  }
}
function stripes(pen, colour, x, y, wide, tall) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, wide, tall);
  pen.clip();
  [pen.strokeStyle, pen.lineWidth] = [colour, 3];
  pen.beginPath();
  for (let at = -tall; at < wide; at += 6) { pen.moveTo(x + at, y + tall); pen.lineTo(x + at + tall, y); }
  pen.stroke();
  pen.lineWidth = 2;
  pen.strokeRect(x, y, wide, tall);
  pen.restore();
}

const sides = ["left", "right"].map((name) => new Side(name));
const tracks = () => sides.map((side) => side.track).filter(Boolean);
function longest() { return Math.max(1, ...tracks().map((track) => track.total)); }
let position = 0, running = 0, last = 0;

function show() {
  slider.max = longest();
  slider.value = position;
  slider.setAttribute("aria-valuetext", bytes(Math.round(position)));
  for (const side of sides) side.show(position);
}
function go(to) {
  position = Math.max(0, Math.min(to, longest()));
  show();
}
function stop() {
  cancelAnimationFrame(running);
  running = 0;
  play.textContent = "Play";
}
function frame(now) {
  go(position + longest() * (now - last) / 1000 / SECONDS * Number(speed.value));
  last = now;
  if (position < longest()) running = requestAnimationFrame(frame); else stop();
}
function toggle() {
  if (running) { stop(); return; }
  if (position >= longest()) position = 0;
  play.textContent = "Pause";
  last = performance.now();
  running = requestAnimationFrame(frame);
}
// To where some side's step ends, the next one or the one before.
function step(forward) {
  stop();
  const ends = tracks().flatMap((track) => track.before);
  if (forward) go(Math.min(longest(), ...ends.filter((end) => end > position)));
  else go(Math.max(0, ...ends.filter((end) => end < position)));
}

play.addEventListener("click", toggle);
control("first").addEventListener("click", () => { stop(); go(0); });
control("back").addEventListener("click", () => step(false));
control("forward").addEventListener("click", () => step(true));
slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
for (const side of sides) side.choice.addEventListener("change", () => { stop(); side.choose(); go(Math.min(position, longest())); });
document.getElementById("replay").addEventListener("keydown", (event) => {
  if (event.target.closest("select, input, button") || event.ctrlKey || event.metaKey || event.altKey) return;
  const doing = { " ": toggle, ArrowRight: () => step(true), ArrowLeft: () => step(false), Home: () => { stop(); go(0); },
    End: () => { stop(); go(longest()); } }[event.key];
  if (doing) { event.preventDefault(); doing(); }
});
document.addEventListener("themechange", show);
new ResizeObserver(show).observe(document.querySelector(".replay-sides"));
// Open in the middle of the steps, where tiles are read and held; nothing has happened at the start.
const longer = tracks().reduce((one, other) => (other.before.length > one.before.length ? other : one));
go(longer.before[longer.before.length >> 1]);
