// Shows only the rows of a gallery that hold every word that is typed. Letters are compared without case and width.
const plain = text => text.normalize("NFKC").toLowerCase().replace(/[\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "");
for (const search of document.querySelectorAll(".search")) {
  const [field, count] = [search.querySelector("input"), search.querySelector("output")];
  const rows = [...search.parentElement.querySelectorAll("tbody tr, .tile")];
  const texts = rows.map(row => plain(row.textContent));
  const filter = () => {
    const words = plain(field.value).split(/\s+/).filter(Boolean);
    const found = texts.map(text => words.every(word => text.includes(word)));
    rows.forEach((row, number) => { row.hidden = !found[number]; });
    count.value = words.length ? `${found.filter(Boolean).length} of ${rows.length}` : "";
  };
  field.addEventListener("input", filter);
  search.hidden = false;
}
