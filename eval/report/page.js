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

// A button below each figure saves it: with its title and legend, in the colours that the page has now.
for (const figure of document.querySelectorAll("figure[data-file]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "get";
  button.textContent = "SVG";
  button.setAttribute("aria-label", `SVG: ${figure.querySelector("figcaption strong").textContent}`);
  button.addEventListener("click", () => {
    const svg = figure.querySelector("svg[data-alone]").cloneNode(true);
    svg.setAttribute("viewBox", svg.dataset.alone);
    svg.removeAttribute("data-alone");
    svg.querySelector("g.alone").removeAttribute("display");
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    svg.setAttribute("style", `color: ${colour("--ink")}; background: ${colour("--paper")}`);
    svg.setAttribute("font-family", "sans-serif");
    const text = new XMLSerializer().serializeToString(svg).replace(/var\((--[\w-]+)\)/g, (_, name) => colour(name));
    const link = document.createElement("a");
    link.download = figure.dataset.file;
    link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  figure.append(button);
}
