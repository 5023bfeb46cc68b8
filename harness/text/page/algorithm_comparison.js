// Shows the two chosen variants, and puts equal lines of one algorithm beside each other.
const columns = [...document.querySelectorAll("#algorithms > .algorithm")];
const choices = [0, 1].map((side) => document.getElementById(`algorithm-${side}`));

// Row of each step, from 2 on (1 is the heading's), by the paper's line.
function rowsOf(pair) {
  const steps = pair.map((column) => [...column.querySelectorAll(".step")]);
  const lineOf = (step) => (step.dataset.number === "" ? Infinity : Number(step.dataset.number));
  const lines = [...new Set(steps.flat().map(lineOf))].sort((a, b) => a - b);
  const rows = [[], []];
  let next = 2;
  for (const line of lines) {
    const here = steps.map((own) => own.filter((step) => lineOf(step) === line));
    here.forEach((own, side) => own.forEach((step, at) => rows[side].push([step, next + at])));
    next += Math.max(...here.map((own) => own.length));
  }
  return rows;
}

function choose() {
  const pair = choices.map((choice) => columns.find((column) => column.dataset.variant === choice.value));
  for (const column of columns) column.hidden = !pair.includes(column);
  pair.forEach((column, side) => column.style.setProperty("--side", side));
  const aligned = pair[0] !== pair[1] && pair[0].dataset.algorithm !== ""
    && pair[0].dataset.algorithm === pair[1].dataset.algorithm;
  document.getElementById("algorithms").classList.toggle("aligned", aligned);
  if (!aligned) return;
  rowsOf(pair).forEach((rows, side) => {
    for (const [element, row] of [[pair[side].querySelector("h3"), 1], ...rows]) element.style.setProperty("--row", row);
  });
}
for (const choice of choices) choice.addEventListener("change", choose);
document.getElementById("algorithm-controls").hidden = false;
choose();
