"use strict";
// What the parts of the page share: data, colours, numbers as people read them, the tooltip.
const page = (() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("figures").textContent);
  const tip = document.getElementById("tip");

  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const kind = (id) => "k-" + (id || "other");
  const word = (id) => data.words[id || "other"] || id;

  const digits = (value) => (Math.abs(value) >= 99.95 ? 0 : Math.abs(value) >= 9.995 ? 1 : 2);
  const tick = (value) => String(Number(value.toPrecision(7)));
  const ms = (value) =>
    value !== 0 && Math.abs(value) < 0.1
      ? (value * 1000).toFixed(digits(value * 1000)) + " us"
      : value.toFixed(digits(value)) + " ms";
  const scaled = (value, step, names) => {
    let number = 0;
    while (Math.abs(value) >= 1000 && number < names.length - 1) {
      value /= step;
      number += 1;
    }
    const whole = Math.abs(value) >= 9.95 || number === 0 || Math.abs(value - Math.round(value)) < 1e-9;
    return value.toFixed(whole ? 0 : 1) + " " + names[number];
  };
  const size = (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);

  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(6, x + 14), innerWidth - box.width - 6);
    const below = y + 18 + box.height < innerHeight;
    tip.style.left = left + "px";
    tip.style.top = (below ? y + 18 : Math.max(6, y - box.height - 12)) + "px";
  };
  const hide = () => (tip.hidden = true);
  let focused = null;
  // Words of what was reached by keyboard, and their end.
  const reach = (element, text) => {
    focused = () => {
      const box = element.getBoundingClientRect();
      show(text, box.right, box.bottom);
    };
    focused();
  };
  const leave = () => {
    focused = null;
    hide();
  };

  // A mark that tells more when it is pointed at or reached by keyboard.
  const tell = (element, text) => {
    element.setAttribute("tabindex", "0");
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", text.replaceAll("\n", ", "));
    element.addEventListener("pointermove", (event) => show(text, event.clientX, event.clientY));
    element.addEventListener("pointerleave", hide);
    element.addEventListener("focus", () => reach(element, text));
    element.addEventListener("blur", leave);
  };

  const SVG = "http://www.w3.org/2000/svg";
  const svg = (name, attributes, parent, text) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };

  // Round numbers between two, about `count` of them.
  const ticks = (from, to, count) => {
    const raw = (to - from) / count;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((by) => by * power).find((by) => by >= raw);
    const values = [];
    for (let i = Math.ceil(from / step); i * step <= to; i += 1) values.push(i * step);
    return values;
  };

  const drawn = [];
  const redraw = () => drawn.forEach((draw) => draw());
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) redraw();
    width = innerWidth;
  });
  // What was reached by keyboard is scrolled into view: its words stay with it.
  addEventListener("scroll", () => (focused ? focused() : hide()), { passive: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => {
    root.setAttribute("data-print", "");
    redraw();
  });
  addEventListener("afterprint", () => {
    root.removeAttribute("data-print");
    redraw();
  });

  return { data, colour, kind, word, tick, ms, size, show, hide, reach, leave, tell, svg, ticks, drawn };
})();
