"use strict";
// Draws the figures that stand as JSON in the page. "@name" is a colour of the style sheet.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  const resolved = (value) => {
    if (typeof value === "string" && /^@[a-z]+$/.test(value)) return colour(value.slice(1));
    if (Array.isArray(value)) return value.map(resolved);
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item)]));
    }
    return value;
  };

  const axis = (own) => ({
    gridcolor: colour("line"),
    linecolor: colour("line"),
    zerolinecolor: colour("line"),
    automargin: true,
    fixedrange: true,
    ...own,
    title: { ...(own || {}).title, standoff: 12 },
  });

  // On a narrow page, numbers beside short bars need a larger part of the width.
  const roomy = (own, narrow) =>
    narrow && own && own.range && own.range[0] === 0
      ? { ...own, range: [0, own.range[1] * 1.25] }
      : own;

  const layout = (own, narrow) => ({
    height: narrow ? 300 : 340,
    ...own,
    margin: { l: 8, r: 16, t: 8, b: 8 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: narrow ? 12 : 13, color: colour("ink") },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    hoverlabel: { bgcolor: colour("card"), font: { color: colour("ink") } },
    hovermode: "closest",
    dragmode: false,
    xaxis: axis(roomy(own.xaxis, narrow)),
    yaxis: axis(own.yaxis),
  });

  const draw = () => {
    const drawn = [];
    for (const [id, figure] of Object.entries(figures)) {
      const place = document.getElementById("chart-" + id);
      const narrow = place.clientWidth < 480;
      const shown = resolved(layout(figure.layout, narrow));
      const config = { displayModeBar: false, responsive: true, showTips: false };
      drawn.push(Plotly.react(place, resolved(figure.data), shown, config));
    }
    return Promise.all(drawn);
  };

  draw().then(() => document.documentElement.setAttribute("data-drawn", ""));
  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => {
    document.documentElement.setAttribute("data-print", "");
    draw();
  });
  window.addEventListener("afterprint", () => {
    document.documentElement.removeAttribute("data-print");
    draw();
  });
})();
