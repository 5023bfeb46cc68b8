// Opens and closes the variants' sources, and leaves out lines that cost nothing.
const sources = [...document.querySelectorAll("details.sources-of")];
// A file is shown from where it costs most, once its part is open.
function showMost(part) {
  for (const line of part.querySelectorAll("tr.most")) {
    const box = line.closest(".scroll");
    if (box.scrollTop === 0) box.scrollTop = line.offsetTop - box.clientHeight / 3;
  }
}
for (const part of sources) {
  part.addEventListener("toggle", () => part.open && showMost(part));
  if (part.open) showMost(part);
}
const costly = document.getElementById("source-costly");
document.getElementById("source-open").addEventListener("click", () => sources.forEach((each) => { each.open = true; }));
document.getElementById("source-close").addEventListener("click", () => sources.forEach((each) => { each.open = false; }));
const filter = () => document.getElementById("sources").classList.toggle("only-costly", costly.checked);
costly.addEventListener("change", filter);
filter();
document.getElementById("source-controls").hidden = false;
