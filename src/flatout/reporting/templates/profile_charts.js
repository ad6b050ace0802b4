// Memory over time, as SVG in the width that there is.
(() => {
  const place = (id) => {
    const box = document.getElementById(id);
    box.replaceChildren();
    const width = Math.max(box.clientWidth, 240), height = width < 480 ? 280 : 360;
    const drawing = page.svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group" }, box);
    drawing.setAttribute("aria-label", box.dataset.label);
    return { drawing, width, height };
  };

  const SHADES = { parameters: "matmul-tensor-cores", optimizer: "optimizer", "activations and gradients": "elementwise", all: "matmul-tensor-cores" };

  const memory = () => {
    const { x: unit, at, series } = page.data.memory;
    const { drawing, width, height } = place("memory");
    const left = 58, right = width - 8, top = 14, bottom = height - 40;
    const totals = at.map((_, i) => series.reduce((sum, curve) => sum + curve.bytes[i], 0));
    const most = Math.max(...totals) * 1.08 || 1;
    const first = at[0], last = at[at.length - 1];
    const x = (value) => left + ((value - first) / (last - first || 1)) * (right - left);
    const y = (value) => bottom - (value / most) * (bottom - top);
    const unitOf = 1024 ** Math.floor(Math.log(most) / Math.log(1024));
    for (const tick of page.ticks(0, most / unitOf, 5)) {
      const high = y(tick * unitOf);
      page.svg("line", { class: "rule", x1: left, x2: right, y1: high, y2: high }, drawing);
      page.svg("text", { x: left - 8, y: high + 4, "text-anchor": "end" }, drawing, page.size(tick * unitOf));
    }
    const below = at.map(() => 0);
    for (const curve of series) {
      const floor = [...below];
      curve.bytes.forEach((value, i) => (below[i] += value));
      let path = `M${x(at[0])},${y(below[0])}`;
      for (let i = 1; i < at.length; i += 1) path += ` H${x(at[i]).toFixed(2)} V${y(below[i]).toFixed(2)}`;
      path += ` H${right} V${y(floor[at.length - 1]).toFixed(2)}`;
      for (let i = at.length - 1; i > 0; i -= 1) path += ` H${x(at[i]).toFixed(2)} V${y(floor[i - 1]).toFixed(2)}`;
      path += ` H${x(at[0])} Z`;
      page.svg("path", { d: path, "data-category": curve.name, style: `fill: var(--${page.kind(SHADES[curve.name] ?? "other")})`, "fill-opacity": 0.75 }, drawing);
    }
    for (const tick of page.ticks(first, last, Math.max(2, width / 140))) {
      const words = unit === "ms" ? page.tick(tick) + " ms" : Number.isInteger(tick) ? String(tick) : "";
      const anchor = x(tick) > right - 30 ? "end" : "middle";
      page.svg("text", { x: x(tick), y: bottom + 16, "text-anchor": anchor }, drawing, words);
    }
    page.svg("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, drawing, unit === "ms" ? "time in the recorded window" : "step");
    const rule = page.svg("line", { y1: top, y2: bottom, stroke: "var(--ink)", visibility: "hidden" }, drawing);
    drawing.addEventListener("pointermove", (event) => {
      const edge = drawing.getBoundingClientRect();
      const cursor = first + ((event.clientX - edge.left - left) / (right - left)) * (last - first);
      let i = 0;
      while (i + 1 < at.length && at[i + 1] <= cursor) i += 1;
      rule.setAttribute("x1", x(at[i]));
      rule.setAttribute("x2", x(at[i]));
      rule.setAttribute("visibility", "visible");
      const rows = [...series].reverse().map((curve) => `${curve.name}  ${page.size(curve.bytes[i])}`);
      const when = unit === "ms" ? page.ms(at[i]) : `step ${at[i]}`;
      if (series.length > 1) rows.unshift(`together  ${page.size(totals[i])}`);
      page.show([when, ...rows].join("\n"), event.clientX, event.clientY);
    });
    drawing.addEventListener("pointerleave", () => {
      rule.setAttribute("visibility", "hidden");
      page.hide();
    });
    const legend = document.getElementById("memory-legend");
    legend.replaceChildren();
    if (series.length < 2) return;
    for (const curve of [...series].reverse()) {
      const item = document.createElement("span"), swatch = document.createElement("i");
      swatch.className = "swatch";
      swatch.style.setProperty("--c", `var(--${page.kind(SHADES[curve.name] ?? "other")})`);
      item.append(swatch, curve.name);
      legend.append(item);
    }
  };

  if (page.data.memory) {
    page.drawn.push(memory);
    memory();
  }
  for (const element of document.querySelectorAll("[data-tip]")) page.tell(element, element.dataset.tip);
})();
