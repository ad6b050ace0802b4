// Tables that sort by any column and show only the rows that match.
(() => {
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.v);
  };

  const sort = (table, column, direction) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.sort((first, second) => {
      const a = value(first, column), b = value(second, column);
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return direction === "ascending" ? order : -order;
    });
    body.append(...rows);
    for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
    table.tHead.rows[0].cells[column].setAttribute("aria-sort", direction);
  };

  const filter = (table) => {
    const tools = document.querySelector(`[data-tools="${table.id}"]`);
    const words = tools.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = tools.querySelector("select").value;
    let shown = 0, time = 0, all = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      const matches = (!kind || row.dataset.kind === kind) && words.every((word) => text.includes(word));
      row.hidden = !matches;
      all += Number(row.dataset.ms);
      if (!matches) continue;
      shown += 1;
      time += Number(row.dataset.ms);
    }
    const rows = table.tBodies[0].rows.length;
    tools.querySelector("output").textContent = `${shown} of ${rows} rows, ${page.ms(time)} of ${page.ms(all)}`;
  };

  // Long names are cut after two lines until clicked.
  for (const table of document.querySelectorAll("table")) {
    table.addEventListener("click", (event) => {
      const name = event.target.closest(".name, .code, .short");
      if (name && !String(getSelection())) name.classList.toggle("open");
    });
  }

  for (const table of document.querySelectorAll("table.many")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const number = head.classList.contains("number");
        const now = head.getAttribute("aria-sort");
        const first = number ? "descending" : "ascending";
        const other = number ? "ascending" : "descending";
        sort(table, column, now === first ? other : first);
      });
    });
    const tools = document.querySelector(`[data-tools="${table.id}"]`);
    if (tools) {
      tools.querySelector("input").addEventListener("input", () => filter(table));
      tools.querySelector("select").addEventListener("change", () => filter(table));
      filter(table);
    }
  }
  document.documentElement.setAttribute("data-drawn", "");
})();
