// Draws the curves that stand as JSON in the page, in the colours of its style sheet.
"use strict";
// uPlot reads it once, when it is loaded, after this: twice as fine as a coarse screen needs, so
// that the curves are sharp on paper.
Object.defineProperty(window, "devicePixelRatio", { value: Math.max(2, devicePixelRatio) });
addEventListener("DOMContentLoaded", () => {
  const PAPER = 660; // pixels of a card's width in print
  const root = document.documentElement;
  const charts = Object.values(JSON.parse(document.getElementById("figures").textContent));
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const known = (value) => value !== null && value !== undefined;
  const titled = ({ name, unit }) => (unit ? `${name} (${unit})` : name);
  const number = (value) => {
    if (Number.isInteger(value)) return value.toLocaleString("en");
    if (Math.abs(value) < 1e-3) return value.toExponential(1).replace(".0e", "e");
    return value.toLocaleString("en", { maximumSignificantDigits: 4 });
  };

  // Round numbers from 1 on.
  const WHOLE = Array.from({ length: 60 }, (_, i) => Number(`${[1, 2, 5][i % 3]}e${Math.floor(i / 3)}`));

  // What an axis shows of the points from low to high.
  const range = (axis, low, high, margin) => {
    if (!known(low)) return [0, 1];
    const room = margin * (high - low) || (low === high ? Math.abs(high) * 0.05 || 1 : 0);
    return axis.zero && low >= 0 ? [0, high * (1 + margin) || 1] : [low - room, high + room];
  };

  // Bands and lines behind the curves.
  const behind = (chart) => (plot) => {
    const { ctx, bbox } = plot;
    for (const mark of chart.marks) {
      const from = plot.valToPos(mark.low, mark.axis, true), to = plot.valToPos(mark.high, mark.axis, true);
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.beginPath();
      if (mark.low === mark.high) {
        ctx.strokeStyle = colour(mark.colour);
        ctx.lineWidth = uPlot.pxRatio;
        ctx.setLineDash(mark.dash.map((length) => length * uPlot.pxRatio));
        ctx.moveTo(...(mark.axis === "x" ? [from, bbox.top] : [bbox.left, from]));
        ctx.lineTo(...(mark.axis === "x" ? [from, bbox.top + bbox.height] : [bbox.left + bbox.width, from]));
        ctx.stroke();
      } else {
        ctx.globalAlpha = 0.15;
        ctx.fillStyle = colour(mark.colour);
        if (mark.axis === "x") ctx.fillRect(from, bbox.top, to - from, bbox.height);
        else ctx.fillRect(bbox.left, from, bbox.width, to - from);
      }
      ctx.restore();
    }
  };

  // Of the points near the pointer: on lines those of one x, else the nearest.
  const told = (chart, plot) => {
    const found = chart.curves.flatMap((curve, number) => {
      const at = plot.cursor.idxs[number + 1], y = plot.data[number + 1][at];
      return known(y) && plot.series[number + 1].show ? [{ curve, x: plot.data[0][at], y }] : [];
    });
    if (chart.curves.some((curve) => curve.width)) return found;
    const away = ({ x, y }) => Math.hypot(plot.valToPos(x, "x") - plot.cursor.left, plot.valToPos(y, "y") - plot.cursor.top);
    return found.sort((one, other) => away(one) - away(other)).slice(0, 1);
  };
  const tip = (chart) => {
    const box = document.createElement("div");
    box.className = "tip";
    box.hidden = true;
    return {
      init: (plot) => plot.over.append(box),
      setCursor: (plot) => {
        const items = plot.cursor.left < 0 ? [] : told(chart, plot);
        box.hidden = !items.length;
        if (!items.length) return;
        const row = (text, curve) => {
          const element = document.createElement("div");
          element.textContent = text;
          if (curve) element.style.setProperty("--c", colour(curve.colour));
          return element;
        };
        const rows = items.map(({ curve, x, y }) => {
          const text = curve.texts[curve.x.indexOf(x)];
          return row(`${curve.name ? curve.name + ": " : ""}${number(y)} ${chart.y.unit}${text ? ", " + text : ""}`, curve);
        });
        box.replaceChildren(row(`${chart.x.name}: ${number(items[0].x)} ${chart.x.unit}`), ...rows);
        const right = plot.cursor.left < plot.over.clientWidth / 2;
        box.style.left = right ? "auto" : "0.4rem";
        box.style.right = right ? "0.4rem" : "auto";
      },
    };
  };

  const draw = (chart) => {
    const place = document.querySelector(`#chart-${chart.id} .chart`);
    place.replaceChildren();
    const width = root.hasAttribute("data-print") ? Math.min(place.clientWidth, PAPER) : place.clientWidth;
    const font = `${width < 480 ? 12 : 13}px system-ui, sans-serif`;
    const reach = (name) => chart.marks.filter((mark) => mark.axis === name).flatMap((mark) => [mark.low, mark.high]);
    const joined = chart.curves.some((curve) => curve.width);
    const look = { stroke: colour("ink"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font, labelFont: font, labelSize: 22 };
    const values = (_, splits) => splits.map((value) => (known(value) ? number(value) : ""));
    const whole = chart.curves.every((curve) => curve.x.every(Number.isInteger)) ? { incrs: WHOLE } : {};
    const hover = tip(chart);
    new uPlot({
      width,
      height: width < 480 ? 260 : 320,
      series: [{}, ...chart.curves.map((curve) => ({
        label: curve.name,
        stroke: colour(curve.colour),
        width: curve.width,
        dash: curve.dash,
        ...(curve.width ? {} : { paths: () => null }),
        points: { show: curve.point > 0, size: curve.point, width: 0, fill: colour(curve.colour) },
      }))],
      axes: [
        { ...look, label: titled(chart.x), size: 28, space: width < 480 ? 50 : 70, values, ...whole },
        { ...look, label: titled(chart.y), values, size: (_, texts) => 16 + 7.5 * Math.max(2, ...(texts || []).map((text) => text.length)) },
      ],
      scales: {
        x: { time: false, range: (_, low, high) => range(chart.x, low, high, joined ? 0 : 0.05) },
        y: { range: (_, low, high) => range(chart.y, Math.min(low, ...reach("y")), Math.max(high, ...reach("y")), 0.08) },
      },
      legend: { show: chart.curves.length > 1, live: false, markers: { width: 0, fill: (_, at) => colour(chart.curves[at - 1].colour) } },
      cursor: {
        y: false,
        drag: { x: "zooms" in place.dataset, y: false, setScale: "zooms" in place.dataset },
        ...(joined ? { dataIdx: (_, __, at) => at } : { hover: { prox: 24, skip: [null] } }),
      },
      hooks: { init: [hover.init], setCursor: [hover.setCursor], drawClear: [behind(chart)] },
    }, uPlot.join(chart.curves.map((curve) => [curve.x, curve.y])), place);
    place.querySelector(".u-legend")?.setAttribute("role", "presentation"); // it is no table of figures
  };

  const drawAll = () => charts.forEach(draw);
  drawAll();
  root.setAttribute("data-drawn", "");
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) drawAll();
    width = innerWidth;
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("beforeprint", () => {
    root.setAttribute("data-print", "");
    drawAll();
  });
  addEventListener("afterprint", () => {
    root.removeAttribute("data-print");
    drawAll();
  });
});
