// Draws each bar at full length, or all bars to one scale.
const bars = [...document.querySelectorAll(".bars dd svg")];
const scale = document.getElementById("bars-scale");
const own = document.getElementById("bars-own");
function rescale() {
  const whole = scale.value === "one";
  for (const bar of bars) bar.setAttribute("viewBox", `0 0 ${whole ? 100 : bar.dataset.length} 1`);
  if (own) own.hidden = whole;
}
scale.addEventListener("change", rescale);
rescale();
document.getElementById("bars-controls").hidden = false;
