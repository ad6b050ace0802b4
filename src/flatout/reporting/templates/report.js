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

  // Round numbers: of all sizes, and those from 1 on.
  const ROUND = Array.from({ length: 120 }, (_, i) => Number(`${[1, 2, 5][i % 3]}e${Math.floor(i / 3) - 20}`));
  const WHOLE = ROUND.filter((value) => value >= 1);
  const logarithmic = (low, high) => {
    const within = ROUND.filter((value) => value >= low && value <= high);
    const powers = within.filter((value) => Number.isInteger(Math.log10(value)));
    return within.length < 8 ? within : powers.filter((_, at) => at % Math.ceil(powers.length / 8) === 0);
  };

  // What an axis shows of the points from low to high.
  const range = (axis, low, high, margin) => {
    if (!known(low)) return axis.log ? [1, 10] : [0, 1];
    if (axis.log) {
      const [least, most] = [low / (1 + margin), high * (1 + margin)];
      return axis.ticks.length ? [least, most] : [ROUND.findLast((value) => value <= least), ROUND.find((value) => value >= most)];
    }
    const room = margin * (high - low) || (low === high ? Math.abs(high) * 0.05 || 1 : 0);
    return axis.zero && low >= 0 ? [0, high * (1 + margin) || 1] : [low - room, high + room];
  };

  const shapes = {
    circle: (path, x, y, r) => { path.moveTo(x + r, y); path.arc(x, y, r, 0, 2 * Math.PI); },
    square: (path, x, y, r) => path.rect(x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r),
    diamond: (path, x, y, r) => path.addPath(new Path2D(`M${x - 1.2 * r},${y} L${x},${y - 1.2 * r} L${x + 1.2 * r},${y} L${x},${y + 1.2 * r} Z`)),
  };
  const points = (curve) => (plot, at, first, last) => {
    const path = new Path2D();
    for (let i = first; i <= last; i += 1) {
      if (!known(plot.data[at][i])) continue;
      const x = plot.valToPos(plot.data[0][i], "x", true), y = plot.valToPos(plot.data[at][i], "y", true);
      shapes[curve.shape](path, x, y, (curve.point / 2) * uPlot.pxRatio);
    }
    return { fill: path, stroke: null, clip: null, flags: 3 };
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

  // Intervals and names at the points.
  const upon = (chart, font) => (plot) => {
    const { ctx, bbox } = plot, ratio = uPlot.pxRatio;
    ctx.save();
    ctx.font = font.replace(/\d+/, (size) => size * ratio);
    ctx.lineWidth = 1.5 * ratio;
    ctx.textBaseline = "bottom";
    chart.curves.forEach((curve, at) => {
      if (!plot.series[at + 1].show) return;
      ctx.strokeStyle = colour(curve.colour);
      ctx.fillStyle = colour("ink");
      curve.x.forEach((value, i) => {
        if (!known(curve.y[i])) return;
        const x = plot.valToPos(value, "x", true), y = plot.valToPos(curve.y[i], "y", true);
        if (curve.bounds[i]) {
          ctx.beginPath();
          curve.bounds[i].map((bound) => plot.valToPos(bound, "y", true)).forEach((end, last) => {
            ctx[last ? "lineTo" : "moveTo"](x, end);
          });
          ctx.stroke();
        }
        if (curve.labels[i]) {
          const room = (x - bbox.left) / bbox.width;
          ctx.textAlign = room < 0.05 ? "left" : room > 0.95 ? "right" : "center";
          ctx.fillText(curve.labels[i], x, y - curve.point * ratio);
        }
      });
    });
    ctx.restore();
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
    const ends = chart.curves.flatMap((curve) => curve.bounds.flat());
    const reach = (name) => chart.marks.filter((mark) => mark.axis === name).flatMap((mark) => [mark.low, mark.high]);
    const joined = chart.curves.some((curve) => curve.width);
    const look = { stroke: colour("ink"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font, labelFont: font, labelSize: 22 };
    const ticks = ({ ticks, log }) => {
      if (!ticks.length && !log) return {};
      const every = Math.ceil((36 * ticks.length) / width);
      const splits = (_, __, low, high) => (ticks.length ? ticks.filter((_, at) => at % every === 0) : logarithmic(low, high));
      return { splits, filter: (_, values) => values };
    };
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
        points: { show: curve.point > 0, size: curve.point, fill: colour(curve.colour), paths: points(curve) },
      }))],
      axes: [
        { ...look, label: titled(chart.x), size: 28, space: width < 480 ? 50 : 70, values, ...whole, ...ticks(chart.x) },
        { ...look, label: titled(chart.y), values, ...ticks(chart.y), size: (_, texts) => 16 + 7.5 * Math.max(2, ...(texts || []).map((text) => text.length)) },
      ],
      scales: {
        x: { time: false, distr: chart.x.log ? 3 : 1, range: (_, low, high) => range(chart.x, low, high, joined && !chart.x.log ? 0 : 0.05) },
        y: { distr: chart.y.log ? 3 : 1, range: (_, low, high) => range(chart.y, Math.min(low, ...ends, ...reach("y")), Math.max(high, ...ends, ...reach("y")), 0.08) },
      },
      legend: { show: chart.legend && chart.curves.length > 1, live: false, markers: { width: 0, fill: (_, at) => colour(chart.curves[at - 1].colour) } },
      cursor: {
        y: false,
        drag: { x: "zooms" in place.dataset, y: false, setScale: "zooms" in place.dataset },
        ...(joined ? { dataIdx: (_, __, at) => at } : { hover: { prox: 24, skip: [null] } }),
      },
      hooks: { init: [hover.init], setCursor: [hover.setCursor], drawClear: [behind(chart)], draw: [upon(chart, font)] },
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
