// Shows the two chosen variants, and puts equal lines of one algorithm beside each other.
const columns = [...document.querySelectorAll("#algorithms > .algorithm")];
const choices = [0, 1].map((side) => document.getElementById(`algorithm-${side}`));

// Row of each step, from 2 on (1 is the heading's): by the paper's line where both follow one algorithm, else in order.
function rowsOf(pair) {
  const steps = pair.map((column) => [...column.querySelectorAll(".step")]);
  const same = pair[0].dataset.algorithm !== "" && pair[0].dataset.algorithm === pair[1].dataset.algorithm;
  if (!same) return steps.map((own) => own.map((step, at) => [step, at + 2]));
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
  const sides = pair[0] === pair[1] ? [pair[0]] : pair;
  rowsOf([sides[0], sides[sides.length - 1]]).slice(0, sides.length).forEach((rows, side) => {
    const heading = sides[side].querySelector("h3");
    for (const [element, row] of [[heading, 1], ...rows]) {
      element.style.setProperty("--row", row);
      element.style.setProperty("--side", side);
    }
  });
}
for (const choice of choices) choice.addEventListener("change", choose);
document.getElementById("algorithm-controls").hidden = false;
choose();
