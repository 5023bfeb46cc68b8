// The switch of themes, tables that sort, and links into closed parts of the page.
const root = document.documentElement;
root.classList.remove("no-script");
const chosen = document.getElementById("theme");
const remembered = {
  // A file that is opened from a disk may have no storage.
  get: () => { try { return localStorage.getItem("theme") || ""; } catch { return ""; } },
  set: (value) => { try { localStorage.setItem("theme", value); } catch { /* it holds as long as the page */ } },
};
function useTheme(value) {
  if (value) root.dataset.theme = value; else delete root.dataset.theme;
  document.dispatchEvent(new Event("themechange"));
}
chosen.value = ["light", "dark"].includes(remembered.get()) ? remembered.get() : "";
chosen.parentElement.hidden = false;
if (chosen.value) root.dataset.theme = chosen.value;
chosen.addEventListener("change", () => { remembered.set(chosen.value); useTheme(chosen.value); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => useTheme(chosen.value));

// Numbers before words, and what is unknown last, whichever way it is sorted.
const UNKNOWN = "-";
function keyOf(row, column) {
  const text = row.cells[column].textContent.trim();
  if (text === UNKNOWN || text === "") return null;
  const number = Number.parseFloat(text.replaceAll(",", ""));
  return Number.isNaN(number) ? text : number;
}
function compare(a, b) {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return typeof a === "number" ? a - b : a.localeCompare(b);
}
function sortBy(table, head, column) {
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [keyOf(row, column), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return descending ? compare(b, a) : compare(a, b);
  });
  body.append(...rows.map(([, row]) => row));
}
for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sortBy(table, head, column));
  });
}

function openTarget() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const closed = target && target.closest("details");
  if (closed) { closed.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", openTarget);
openTarget();
