// Roofline and memory over time, as SVG in the width that there is.
(() => {
  const place = (id) => {
    const box = document.getElementById(id);
    box.replaceChildren();
    const width = Math.max(box.clientWidth, 240), height = width < 480 ? 280 : 360;
    const drawing = page.svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group" }, box);
    drawing.setAttribute("aria-label", box.dataset.label);
    return { drawing, width, height };
  };

  const roofline = () => {
    const { roofs, memory, points, rates } = page.data.roofline;
    const { drawing, width, height } = place("roofline");
    const left = 8, right = width - 8 - (rates.length ? 26 : 0), top = 14, bottom = height - 42;
    const best = roofs.length ? roofs[0].value : null;
    const speed = memory.length ? memory[0].value : null;
    const xs = points.map((point) => point.flop_per_byte);
    if (best && speed) xs.push(best / speed);
    if (best && speed && !points.length) xs.push(best / speed / 40);
    const ys = [...points, ...rates].map((point) => point.flops).concat(roofs.slice(0, 1).map((roof) => roof.value));
    const reach = (values, by) => [Math.log10(Math.min(...values) / by), Math.log10(Math.max(...values) * by)];
    const [x0, x1] = xs.length ? reach(xs, 6) : [-1, 3];
    const [y0, y1] = reach(ys, 2.2);
    const x = (value) => left + ((Math.log10(value) - x0) / (x1 - x0)) * (right - left);
    const y = (value) => bottom - ((Math.log10(value) - y0) / (y1 - y0)) * (bottom - top);
    const label = (value) => (value >= 1 ? String(value) : value.toPrecision(1));

    for (let power = Math.ceil(y0); power <= y1; power += 1) {
      const at = y(10 ** power);
      page.svg("line", { class: "rule", x1: left, x2: right, y1: at, y2: at }, drawing);
      page.svg("text", { x: left, y: at - 4 }, drawing, page.flops(10 ** power));
    }
    if (xs.length) {
      for (let power = Math.ceil(x0); power <= x1; power += 1) {
        const at = x(10 ** power);
        page.svg("line", { class: "rule", x1: at, x2: at, y1: top, y2: bottom }, drawing);
        page.svg("text", { x: at, y: bottom + 16, "text-anchor": "middle" }, drawing, label(10 ** power));
      }
      page.svg("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, drawing, "operations per byte moved (FLOP/byte)");
    }
    let lastLabel = -Infinity;
    roofs.forEach((roof, number) => {
      const corner = speed ? Math.max(roof.value / speed, 10 ** x0) : 10 ** x0;
      const begin = speed ? Math.max(speed * 10 ** x0, 10 ** y0) : roof.value;
      const from = speed ? Math.min(begin / speed, corner) : 10 ** x0;
      if (Math.log10(roof.value) < y0) return;
      const path = `M${x(from)},${y(speed ? Math.min(from * speed, roof.value) : roof.value)} L${x(corner)},${y(roof.value)} L${right},${y(roof.value)}`;
      page.svg("path", { class: number ? "roof lower" : "roof", d: path }, drawing);
      if (Math.abs(y(roof.value) - lastLabel) < 15) return;
      lastLabel = y(roof.value);
      page.svg("text", { class: "strong", x: right - 2, y: lastLabel - 5, "text-anchor": "end" }, drawing, `${roof.name}  ${page.flops(roof.value)}`);
    });
    if (speed && best) {
      const low = Math.max(10 ** x0, 10 ** y0 / speed);
      const at = Math.sqrt(low * (best / speed));
      page.svg("text", { class: "strong", x: x(at) + 8, y: y(at * speed) + 14 }, drawing, `${memory[0].name}  ${page.rate(speed)}`);
    }
    const share = (flops) => (best ? `\n${((100 * flops) / best).toPrecision(2)}% of ${roofs[0].name}` : "");
    const most = Math.max(...points.map((point) => point.ms), 0.001);
    for (const point of points) {
      const at = { cx: x(point.flop_per_byte), cy: y(point.flops), r: 5 + 8 * Math.sqrt(point.ms / most) };
      const dot = page.svg("circle", { class: "dot", ...at, style: `--c: var(--${page.kind(point.kind)})` }, drawing);
      page.tell(dot, `${point.name}\n${page.flops(point.flops)}, ${point.flop_per_byte.toPrecision(3)} FLOP/byte\n${page.ms(point.ms)} per step${share(point.flops)}`);
      const side = at.cx > right - 150 ? { x: at.cx - at.r - 4, "text-anchor": "end" } : { x: at.cx + at.r + 4 };
      page.svg("text", { ...side, y: at.cy + 4 }, drawing, point.name);
    }
    for (const item of rates) {
      const at = y(item.flops), edge = right + 6;
      const mark = page.svg("path", { class: "dot", d: `M${edge},${at} l13,-6 l0,12 z`, style: `--c: var(--${page.kind(item.kind)})` }, drawing);
      page.tell(mark, `${item.name}\n${page.flops(item.flops)}\n${page.ms(item.ms)} per step${share(item.flops)}`);
    }
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

  for (const [name, draw] of Object.entries({ roofline, memory })) {
    if (!page.data[name]) continue;
    page.drawn.push(draw);
    draw();
  }
  for (const element of document.querySelectorAll("[data-tip]")) page.tell(element, element.dataset.tip);
})();
