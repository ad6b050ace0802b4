// The timeline of one step: a canvas, since it may hold thousands of spans.
(() => {
  const figure = page.data.timeline;
  if (!figure) return;
  const box = document.getElementById("timeline");
  const canvas = box.querySelector("canvas");
  const legend = document.getElementById("timeline-legend");
  const AXIS = 24, TITLE = 18, ROW = 17, SPACE = 8, LEAST = figure.ms / 20000;
  const view = { from: 0, to: figure.ms };
  let only = null;
  let hovered = null;

  let top = AXIS;
  for (const lane of figure.lanes) {
    lane.top = top;
    top += TITLE + lane.rows * ROW + SPACE;
  }
  const height = top;

  const rgb = (text) => {
    const hex = text.replace("#", "");
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  };
  const inkOn = (fill) => {
    const [r, g, b] = rgb(fill);
    return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10161d" : "#ffffff";
  };

  const place = (span, lane, scale) => ({
    x: (span[3] - view.from) * scale,
    y: lane.top + TITLE + span[0] * ROW,
    width: Math.max(span[4] * scale, 1),
  });

  const draw = () => {
    const wide = box.clientWidth;
    const ratio = devicePixelRatio || 1;
    canvas.width = wide * ratio;
    canvas.height = height * ratio;
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const scale = wide / (view.to - view.from);
    const ink = page.colour("ink"), soft = page.colour("soft"), line = page.colour("line");
    const fills = figure.kinds.map((id) => page.colour(page.kind(id)));
    const inks = fills.map(inkOn);
    pen.textBaseline = "middle";
    pen.font = "11px system-ui, sans-serif";
    for (const at of page.ticks(view.from, view.to, Math.max(3, wide / 130))) {
      const x = (at - view.from) * scale;
      pen.fillStyle = line;
      pen.fillRect(x, 0, 1, height);
      pen.fillStyle = soft;
      if (x + 50 < wide) pen.fillText(page.tick(at) + " ms", x + 4, 10);
    }
    for (const lane of figure.lanes) {
      pen.fillStyle = line;
      pen.fillRect(0, lane.top, wide, 1);
      for (const span of lane.spans) {
        const { x, y, width } = place(span, lane, scale);
        if (x + width < 0 || x > wide) continue;
        pen.globalAlpha = only === null || only === span[2] ? 1 : 0.15;
        pen.fillStyle = fills[span[2]];
        pen.fillRect(x, y, Math.max(width - 0.5, 0.75), ROW - 2);
        if (width > 34) {
          const begin = Math.max(x, 0);
          pen.save();
          pen.beginPath();
          pen.rect(begin, y, Math.min(x + width, wide) - begin - 3, ROW - 2);
          pen.clip();
          pen.fillStyle = inks[span[2]];
          pen.fillText(figure.names[span[1]], begin + 4, y + ROW / 2 - 0.5);
          pen.restore();
        }
        if (hovered && hovered.span === span) {
          pen.strokeStyle = ink;
          pen.lineWidth = 2;
          pen.strokeRect(x, y, width, ROW - 2);
        }
      }
      pen.globalAlpha = 1;
      pen.fillStyle = ink;
      pen.fillText(lane.name, 4, lane.top + TITLE / 2 + 1);
    }
    canvas.dataset.from = view.from;
    canvas.dataset.to = view.to;
  };

  const show = (from, to) => {
    const size = Math.min(Math.max(to - from, LEAST), figure.ms);
    const begin = Math.min(Math.max(from, 0), figure.ms - size);
    view.from = begin;
    view.to = begin + size;
    requestAnimationFrame(draw);
  };
  const zoom = (by, share = 0.5) => {
    const size = (view.to - view.from) * by;
    const at = view.from + (view.to - view.from) * share;
    show(at - size * share, at + size * (1 - share));
  };
  const move = (share) => {
    const by = (view.to - view.from) * share;
    show(view.from + by, view.to + by);
  };

  const under = (event) => {
    const edge = canvas.getBoundingClientRect();
    const x = event.clientX - edge.left, y = event.clientY - edge.top;
    const scale = edge.width / (view.to - view.from);
    let best = null;
    for (const lane of figure.lanes) {
      const row = Math.floor((y - lane.top - TITLE) / ROW);
      if (row < 0 || row >= lane.rows) continue;
      for (const span of lane.spans) {
        if (span[0] !== row) continue;
        const spot = place(span, lane, scale);
        // A very short span is also hit a little beside it.
        const off = Math.max(spot.x - x, x - spot.x - spot.width, 0);
        if (off <= 2 && (!best || off < best.off)) best = { span, lane, off };
      }
    }
    return best;
  };
  const describe = ({ span, lane }) => {
    const id = figure.kinds[span[2]];
    const what = id ? page.word(id) : lane.name;
    return `${figure.names[span[1]]}\n${page.ms(span[4])}, ${what}\n${lane.name}, from ${page.ms(span[3])}`;
  };

  // Positions of the fingers: one drags, two also zoom.
  const held = new Map();
  const spread = () => {
    const low = Math.min(...held.values()), high = Math.max(...held.values());
    return { at: (low + high) / 2, apart: high - low };
  };
  let last = null;
  canvas.addEventListener("pointerdown", (event) => {
    held.set(event.pointerId, event.clientX);
    if (event.isPrimary) canvas.setPointerCapture(event.pointerId);
    last = spread();
  });
  const release = (event) => {
    held.delete(event.pointerId);
    last = spread();
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointermove", (event) => {
    if (held.has(event.pointerId)) {
      held.set(event.pointerId, event.clientX);
      const now = spread();
      const edge = canvas.getBoundingClientRect();
      const pinched = held.size > 1 && now.apart > 10 && last.apart > 10;
      if (pinched) zoom(last.apart / now.apart, (now.at - edge.left) / edge.width);
      move((last.at - now.at) / edge.width);
      last = now;
      page.hide();
      return;
    }
    const hit = under(event);
    if ((hit && hit.span) !== (hovered && hovered.span)) {
      hovered = hit;
      requestAnimationFrame(draw);
    }
    if (hit) page.show(describe(hit), event.clientX, event.clientY);
    else page.hide();
  });
  canvas.addEventListener("click", (event) => {
    const hit = under(event);
    if (hit) page.show(describe(hit), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => {
    page.hide();
    hovered = null;
    requestAnimationFrame(draw);
  });
  canvas.addEventListener("dblclick", () => show(0, figure.ms));
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const edge = canvas.getBoundingClientRect();
      zoom(Math.exp(event.deltaY * 0.004), (event.clientX - edge.left) / edge.width);
    },
    { passive: false },
  );

  const acts = {
    in: () => zoom(0.5),
    out: () => zoom(2),
    left: () => move(-0.25),
    right: () => move(0.25),
    all: () => show(0, figure.ms),
  };
  for (const button of document.querySelectorAll("[data-timeline]")) {
    button.addEventListener("click", acts[button.dataset.timeline]);
  }

  // The kinds that are there: pressing one dims the others.
  figure.kinds.forEach((id, number) => {
    if (!id) return;
    const button = document.createElement("button");
    const swatch = document.createElement("i");
    swatch.className = "swatch";
    swatch.style.setProperty("--c", `var(--${page.kind(id)})`);
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.append(swatch, page.word(id));
    button.addEventListener("click", () => {
      only = only === number ? null : number;
      for (const other of legend.children) other.setAttribute("aria-pressed", String(only !== null && other === button));
      draw();
    });
    legend.append(button);
  });

  page.drawn.push(draw);
  draw();
})();
