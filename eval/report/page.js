// A click on a column head sorts its table. Without this script the tables stand in their own order.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const value = row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    return value === "nan" ? "" : value;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    const first = head.classList.contains("n") ? "descending" : "ascending";
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const direction = before ? (before === "descending" ? "ascending" : "descending") : first;
      const sign = direction === "ascending" ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a, column), key(b, column)];
        if (x === "" || y === "") return (x === "") - (y === ""); // what has no value stays at the end
        const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return sign * order;
      });
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", direction);
      body.append(...rows);
    });
  });
}
