// Opens and closes the variants' sources, and leaves out lines that cost nothing.
const sources = [...document.querySelectorAll("details.sources-of")];
const costly = document.getElementById("source-costly");
document.getElementById("source-open").addEventListener("click", () => sources.forEach((each) => { each.open = true; }));
document.getElementById("source-close").addEventListener("click", () => sources.forEach((each) => { each.open = false; }));
const filter = () => document.getElementById("sources").classList.toggle("only-costly", costly.checked);
costly.addEventListener("change", filter);
filter();
document.getElementById("source-controls").hidden = false;
