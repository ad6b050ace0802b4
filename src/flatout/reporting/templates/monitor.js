"use strict";
// Draws the frames of flatout monitor. Everything that comes from outside is set as text.
(() => {
  const KEPT = 900;
  const state = document.getElementById("state");
  const pauseButton = document.getElementById("pause");
  const series = new Map(); // subject -> figure -> [times, values]
  const charts = new Map(); // subject + figure -> uPlot
  let paused = false, latest = null, over = false;

  const known = (value) => value !== null && value !== undefined;
  const share = (value) => (known(value) ? `${(100 * value).toFixed(0)}%` : "-");
  const size = (value) => {
    if (!known(value)) return "-";
    let unit = 0;
    while (value >= 1000 && unit < 4) { value /= 1024; unit += 1; }
    return `${value.toFixed(unit > 1 && value < 10 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  };
  const time = (seconds) => {
    if (!known(seconds)) return "-";
    if (seconds < 1) return `${(1000 * seconds).toPrecision(3)} ms`;
    if (seconds < 120) return `${seconds.toPrecision(3)} s`;
    if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
    return `${(seconds / 3600).toFixed(1)} h`;
  };
  const number = (value, unit = "") => {
    if (!known(value)) return "-";
    return (typeof value === "string" ? value : Number(value.toPrecision(4)).toLocaleString("en")) + unit;
  };

  const element = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const put = (parent, ...children) => { parent.append(...children); return parent; };

  // Series ------------------------------------------------------------------------------------
  const add = (subject, figure, at, value) => {
    if (!series.has(subject)) series.set(subject, new Map());
    const figures = series.get(subject);
    if (!figures.has(figure)) figures.set(figure, [[], []]);
    const [times, values] = figures.get(figure);
    if (times.length && at <= times[times.length - 1]) return;
    times.push(at);
    values.push(typeof value === "number" ? value : null);
    if (times.length > KEPT) { times.shift(); values.shift(); }
  };

  const JOB = {
    "loss": (job) => job.loss,
    "time per step (ms)": (job) => (known(job.step_s) ? 1000 * job.step_s : null),
    "samples/s": (job) => job.samples_per_s,
    "waiting for data (%)": (job) => (known(job.wait_share) ? 100 * job.wait_share : null),
    "memory (GiB)": (job) => (known(job.memory_bytes) ? job.memory_bytes / 2 ** 30 : null),
  };
  const GPU = {
    "busy (%)": (gpu) => (known(gpu.utilization) ? 100 * gpu.utilization : null),
    "memory (GiB)": (gpu) => (known(gpu.memory_used_bytes) ? gpu.memory_used_bytes / 2 ** 30 : null),
    "power (W)": (gpu) => gpu.power_w,
    "temperature (°C)": (gpu) => gpu.temperature_c,
  };

  const remember = (frame) => {
    for (const job of frame.jobs) {
      if (job.state === "ended") continue;
      for (const [name, figure] of Object.entries(JOB)) add(`job ${job.id}`, name, frame.time_s, figure(job));
    }
    for (const machine of frame.machines) {
      add(machine.hostname, "cores in use", frame.time_s, machine.cpu_cores);
      for (const gpu of machine.gpus) {
        for (const [name, figure] of Object.entries(GPU)) {
          add(`${machine.hostname} GPU ${gpu.index}`, name, frame.time_s, figure(gpu));
        }
      }
    }
    const shown = new Set([...frame.jobs.map((job) => `job ${job.id}`)]);
    for (const subject of series.keys()) {
      if (subject.startsWith("job ") && !shown.has(subject)) series.delete(subject);
    }
  };

  // Curves ------------------------------------------------------------------------------------
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const curves = (subject, parent) => {
    for (const [figure, data] of series.get(subject) || []) {
      if (!data[1].some((value) => value !== null)) continue;
      const key = `${subject}\n${figure}`;
      let entry = charts.get(key);
      if (!entry) {
        const place = put(element("div", undefined, "curve"), element("h4", figure));
        place.setAttribute("role", "group");
        place.setAttribute("aria-label", figure);
        entry = { place, chart: null };
        charts.set(key, entry);
      }
      parent.append(entry.place);
      const width = Math.max(200, Math.floor(parent.clientWidth < 640 ? parent.clientWidth : entry.place.clientWidth || 320));
      if (!entry.chart) entry.chart = chart(figure, data, width, entry.place);
      else {
        const zoomed = entry.zoomed && entry.zoomed();
        entry.chart.setData(data, !zoomed);
        if (entry.chart.width !== width) entry.chart.setSize({ width, height: 150 });
      }
      entry.zoomed = entry.chart.zoomedByHand;
    }
  };

  const chart = (figure, data, width, place) => {
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    let zoomed = false;
    const made = new uPlot({
      width,
      height: 150,
      series: [{}, { label: figure, stroke: colour("--curve"), width: 1.5, spanGaps: false }],
      axes: [{ ...axis, space: 70, size: 28, values: (_, times) => times.map(clock) }, { ...axis, size: 56 }],
      scales: { y: { range: (_, low, high) => (figure === "loss" || low < 0 ? spread(low, high) : [0, high * 1.1 || 1]) } },
      legend: { show: false },
      cursor: { drag: { x: true, y: false } },
      hooks: { setSelect: [() => { zoomed = true; }] },
    }, data, place);
    made.over.addEventListener("dblclick", () => { zoomed = false; });
    made.zoomedByHand = () => zoomed;
    return made;
  };
  const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const spread = (low, high) => {
    const margin = 0.05 * (high - low) || Math.abs(high) * 0.05 || 1;
    return [low - margin, high + margin];
  };

  // Parts -------------------------------------------------------------------------------------
  const figures = (pairs) => {
    const list = element("dl");
    for (const [name, value] of pairs) {
      if (value === "-" || value === "") continue;
      put(list, put(element("div"), element("dt", name), element("dd", value)));
    }
    return list;
  };

  const command = (text) => {
    const button = element("button", "Copy");
    button.type = "button";
    button.addEventListener("click", () => {
      navigator.clipboard?.writeText(text).then(() => { button.textContent = "Copied"; }, () => {});
    });
    return put(element("pre"), element("code", text), button);
  };

  const alertCard = (alert, jobs) => {
    const card = element("article", undefined, `card alert ${alert.severity} ${alert.state}`);
    const subject = alert.subject ? ` · ${alert.subject}` : "";
    const resolved = alert.state === "resolved" ? "resolved · " : "";
    const job = jobs.find((one) => one.id === alert.job);
    const about = job ? `${job.program} · ` : "";
    put(card, put(element("div", undefined, "head"), element("h3", alert.title),
      element("span", `${resolved}${about}${alert.code}${subject} · ${alert.hostname}`, "soft")));
    put(card, element("p", alert.evidence));
    put(card, element("p", alert.cure.text + (alert.boost ? ` Boost: ${alert.boost}.` : "")));
    for (const line of alert.cure.commands) put(card, command(line));
    put(card, element("p", `since ${clock(alert.since_s)}`, "soft"));
    return card;
  };

  const stateOf = (job) => {
    if (job.state === "foreign") return ["not started by flatout", ""];
    if (job.state !== "ended") return [job.state, job.state];
    if (job.exit_code === 130) return ["interrupted", "ended"];
    return job.exit_code ? [`exit code ${job.exit_code}`, "failed"] : ["ended", "ended"];
  };

  const jobCard = (job, card) => {
    const [words, kind] = stateOf(job);
    card.replaceChildren(put(element("div", undefined, "head"), element("h3", job.program),
      element("span", words, `state ${kind}`), element("span", job.hostname, "soft")));
    const step = known(job.steps_expected) ? `${number(job.step)} of ${number(job.steps_expected)}` : number(job.step);
    put(card, figures([
      ["step", step], ["time per step", time(job.step_s)], ["samples/s", number(job.samples_per_s)],
      ["waiting for data", share(job.wait_share)], ["loss", number(job.loss)],
      ["memory", size(job.memory_bytes)], ["GPU memory", size(job.gpu_memory_bytes)],
      ["GPUs", job.gpus.join(", ")], ["cores", number(job.cpu_cores)], ["time left", time(job.left_s)],
      ["boosts", job.boosts.join(", ")], ["ranks", job.ranks.length > 1 ? String(job.ranks.length) : "-"],
    ]));
    if (job.ranks.length > 1) put(card, rankTable(job.ranks));
    const place = put(card, element("div", undefined, "curves")).lastChild;
    curves(`job ${job.id}`, place);
  };

  const table = (headings, rows) => {
    const made = element("table");
    put(made, put(element("thead"), put(element("tr"), ...headings.map((text) => element("th", text)))));
    put(made, put(element("tbody"), ...rows.map((row) => put(element("tr"), ...row.map((text) => element("td", text))))));
    return put(element("div", undefined, "wide"), made);
  };
  const rankTable = (ranks) => table(
    ["rank", "step", "time", "wait", "loss", "memory"],
    ranks.map((rank) => [String(rank.rank), number(rank.step), time(rank.step_s), share(rank.wait_share), number(rank.loss), size(rank.memory_bytes)]));

  const machineCard = (machine, card) => {
    card.replaceChildren(element("h3", machine.hostname));
    const rate = (value) => (known(value) ? `${size(value)}/s` : "-");
    put(card, figures([
      ["cores in use", known(machine.cpu_cores) ? `${number(Number(machine.cpu_cores.toFixed(1)))} of ${number(machine.cores)}` : "-"],
      ["memory", known(machine.memory_used_bytes) ? `${size(machine.memory_used_bytes)} of ${size(machine.memory_bytes)}` : "-"],
      ["swap", machine.swap_used_bytes ? size(machine.swap_used_bytes) : "-"],
      ["disk read", rate(machine.disk_read_bytes_per_s)], ["disk written", rate(machine.disk_written_bytes_per_s)],
      ["network in", rate(machine.network_received_bytes_per_s)], ["network out", rate(machine.network_sent_bytes_per_s)],
    ]));
    if (machine.gpus.length) {
      put(card, table(["GPU", "busy", "memory", "temperature", "power", "clock", "slowed by"], machine.gpus.map((gpu) => [
        `${gpu.index} ${gpu.name || ""}`, share(gpu.utilization), `${size(gpu.memory_used_bytes)} of ${size(gpu.memory_bytes)}`,
        number(gpu.temperature_c, " °C"), number(gpu.power_w, " W"), number(gpu.clock_mhz, " MHz"),
        (gpu.throttles || []).filter((name) => /thermal|brake|hw_slowdown/.test(name)).join(", ") || "-",
      ])));
    }
    const place = put(card, element("div", undefined, "curves")).lastChild;
    curves(machine.hostname, place);
    for (const gpu of machine.gpus) curves(`${machine.hostname} GPU ${gpu.index}`, place);
  };

  const cards = (parent, items, key, draw, nothing) => {
    const before = new Map([...parent.children].filter((card) => card.dataset.key).map((card) => [card.dataset.key, card]));
    const shown = items.map((item) => {
      const card = before.get(key(item)) || element("article", undefined, "card");
      card.dataset.key = key(item);
      return card;
    });
    if (shown.length !== parent.children.length || shown.some((card, place) => parent.children[place] !== card)) {
      parent.replaceChildren(...(shown.length ? shown : [element("p", nothing, "soft")]));
    }
    items.forEach((item, place) => draw(item, shown[place]));
  };

  // Frames ------------------------------------------------------------------------------------
  let alertsDrawn = "";
  const draw = (frame) => {
    const shown = frame.alerts.filter((alert) => alert.state !== "pending");
    const text = JSON.stringify([shown, frame.notes]);
    if (text !== alertsDrawn) { // drawn anew only where it changed: it is read aloud
      alertsDrawn = text;
      const notes = frame.notes.map((note) => element("p", note, "card soft"));
      const parts = shown.length ? shown.map((alert) => alertCard(alert, frame.jobs)) : [element("p", "No alerts.", "soft")];
      document.getElementById("alerts").replaceChildren(...notes, ...parts);
    }
    cards(document.getElementById("jobs"), frame.jobs, (job) => job.id, jobCard, "No job runs. flatout run train.py starts one.");
    cards(document.getElementById("machines"), frame.machines, (machine) => machine.hostname, machineCard, "");
    const firing = frame.alerts.filter((alert) => alert.state === "firing").length;
    document.title = firing ? `(${firing}) flatout monitor` : "flatout monitor";
    state.textContent = `${paused ? "paused, " : ""}last frame ${clock(frame.time_s)}`;
  };

  let due = false;
  const received = (frame) => {
    remember(frame);
    latest = frame;
    if (due || paused) return;
    due = true;
    requestAnimationFrame(() => { due = false; draw(latest); });
  };

  pauseButton.addEventListener("click", () => {
    paused = !paused;
    pauseButton.setAttribute("aria-pressed", String(paused));
    pauseButton.textContent = paused ? "Go on" : "Pause";
    if (latest) draw(latest);
  });
  window.addEventListener("resize", () => { if (latest && !paused) draw(latest); });

  // Connection --------------------------------------------------------------------------------
  const session = async () => {
    const token = location.hash.slice(1);
    if (!token) return;
    const answer = await fetch("/session", { method: "POST", body: JSON.stringify({ token }) });
    if (answer.ok) history.replaceState(null, "", "/");
  };

  let lastNumber = "";
  const listen = () => {
    const source = new EventSource("/events");
    source.onmessage = (event) => {
      lastNumber = event.lastEventId;
      received(JSON.parse(event.data));
    };
    source.onerror = () => {
      if (over) return;
      if (source.readyState === EventSource.CLOSED) {
        state.textContent = lastNumber
          ? "the monitor has ended; open the address that the new one prints"
          : "no access: open the address that flatout monitor --web printed";
        setTimeout(listen, 5000);
      } else {
        state.textContent = "reconnecting ...";
      }
    };
  };
  window.addEventListener("pagehide", () => { over = true; });
  session().catch(() => {}).finally(listen);
})();
