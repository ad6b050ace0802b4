// The flame graph of the host's time: d3-flame-graph draws it, the step above what it consists of.
// One frame at a time can be reached by Tab; arrow keys go from frame to frame, Enter zooms.
(() => {
  const figure = page.data.flames;
  if (!figure) return;
  const box = document.getElementById("flames");
  const CELL = 20, LEAST = 1;
  const width = () => Math.max(box.clientWidth, 240);

  const words = (node) => {
    const { name, kind, value } = node.data;
    if (!node.parent) return `${name}\n${page.ms(figure.ms)}`;
    const share = Number(((100 * value) / figure.ms).toPrecision(value < figure.ms / 100 ? 1 : 2));
    const whose = figure.names[kind] ? `, ${figure.names[kind]}` : "";
    return `${name}\n${page.ms(value)}, ${share}% of the step${whose}`;
  };
  const shade = (node) => `var(--${page.kind(figure.shades[node.data.kind] ?? node.data.kind)})`;
  const silent = Object.assign(() => {}, { show() {}, hide() {} });

  let reached = 0; // id of the frame that Tab reaches
  const frames = () => [...box.querySelectorAll("g.frame")];
  const nodeOf = (frame) => d3flame.select(frame).datum();
  const frameOf = (id) => frames().find((frame) => nodeOf(frame).id === id);

  // After each drawing: names for those who hear the page, and a height without empty rows.
  const name = () => {
    const shown = frames();
    if (!frameOf(reached)) reached = 0;
    for (const frame of shown) {
      const node = nodeOf(frame);
      frame.setAttribute("role", "treeitem");
      frame.setAttribute("aria-level", node.depth + 1);
      frame.setAttribute("aria-label", words(node).replaceAll("\n", ", "));
      frame.setAttribute("tabindex", node.id === reached ? 0 : -1);
    }
    const deepest = Math.max(...shown.map((frame) => nodeOf(frame).depth));
    box.querySelector("svg").setAttribute("height", (deepest + 1) * CELL + 1);
  };

  const chart = d3flame
    .flamegraph()
    .inverted(true)
    .cellHeight(CELL)
    .minFrameSize(LEAST)
    .transitionDuration(0)
    .resetHeightOnZoom(true)
    .sort((a, b) => b.data.value - a.data.value)
    .tooltip(silent)
    .color(shade)
    .label(words)
    .onClick(() => {
      page.hide();
      name();
    })
    .width(width());
  d3flame.select(box).datum(figure.root).call(chart);
  const drawing = box.querySelector("svg");
  drawing.setAttribute("role", "tree");
  drawing.setAttribute("aria-label", box.dataset.label);
  name();

  const draw = () => {
    chart.width(width()).update();
    name();
  };
  const zoom = (node) => {
    reached = node.id;
    chart.zoomTo(node);
    frameOf(node.id)?.focus();
  };
  document.querySelector("[data-flames='all']").addEventListener("click", () => {
    chart.resetZoom();
    name();
  });

  const under = (event) => event.target.closest?.("g.frame");
  box.addEventListener("pointermove", (event) => {
    const frame = under(event);
    if (frame) page.show(words(nodeOf(frame)), event.clientX, event.clientY);
    else page.hide();
  });
  box.addEventListener("pointerleave", page.hide);
  box.addEventListener("focusin", (event) => {
    const frame = under(event);
    if (!frame) return;
    frameOf(reached)?.setAttribute("tabindex", -1);
    frame.setAttribute("tabindex", 0);
    reached = nodeOf(frame).id;
    page.reach(frame, words(nodeOf(frame)));
  });
  box.addEventListener("focusout", page.leave);

  // Frames that are drawn, from one to another.
  const visible = (nodes) => (nodes ?? []).filter((node) => frameOf(node.id));
  const beside = (node, by) => {
    const all = node.parent ? visible(node.parent.children) : [node];
    return all[all.indexOf(node) + by];
  };
  const ways = {
    ArrowDown: (node) => visible(node.children)[0],
    ArrowUp: (node) => node.parent,
    ArrowRight: (node) => beside(node, 1),
    ArrowLeft: (node) => beside(node, -1),
  };
  box.addEventListener("keydown", (event) => {
    const frame = under(event);
    if (!frame) return;
    const node = nodeOf(frame);
    if (event.key === "Enter" || event.key === " ") zoom(node);
    else if (ways[event.key]) frameOf(ways[event.key](node)?.id)?.focus();
    else return;
    event.preventDefault();
  });

  page.drawn.push(draw);
})();
