"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const NARROW_WIDTH = 520, EXPORT_WIDTH = 720, PRINT_WIDTH = 660;
  const LIGHT = {
    ink: "#1c2127", muted: "#7b8692", accent: "#0072b2", second: "#d55e00", ground: "#ffffff", grid: "#e8ebef",
    palette: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#33383e", "#8a7500"],
  };
  const DARK = {
    ink: "#e8eaed", muted: "#8d98a4", accent: "#56b4e9", second: "#f0a04b", ground: "#14171b", grid: "#2a3037",
    palette: ["#4b9fe6", "#f2793a", "#1fbf92", "#e09abf", "#8fd3f7", "#f0b429", "#d5dae0", "#c9b838"],
  };

  // ---------------------------------------------------------------- charts

  /** Convert the columns stored in the page to the records that Vega draws. */
  function records(columns) {
    const names = Object.keys(columns);
    const values = names.map((name) => {
      const column = columns[name];
      return Array.isArray(column) ? column : column.places.map((index) => column.texts[index]);
    });
    const count = values.length ? values[0].length : 0;
    return Array.from({ length: count }, (_, row) => Object.fromEntries(names.map((name, n) => [name, values[n][row]])));
  }

  /** Return a specification with its placeholders replaced by colors and by the selected options. */
  function fillPlaceholders(value, colors, chosen) {
    if (Array.isArray(value)) {
      if (value.length === 1 && value[0] === "$chosen") return chosen.map((option) => option.name);
      if (value.length === 1 && value[0] === "$palette") return chosen.map((option) => colors.palette[option.slot]);
      return value.map((item) => fillPlaceholders(item, colors, chosen));
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, fillPlaceholders(item, colors, chosen)]));
    }
    if (typeof value === "string" && value.startsWith("$")) return colors[value.slice(1)] ?? value;
    return value;
  }

  function vegaConfig(colors, width) {
    const font = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
    const narrow = width < NARROW_WIDTH;
    return {
      font, background: null, view: { stroke: null },
      axis: {
        labelColor: colors.ink, titleColor: colors.muted, gridColor: colors.grid, domainColor: colors.grid,
        tickColor: colors.grid, labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal", titlePadding: 8,
      },
      axisY: { labelLimit: Math.round(width * (narrow ? 0.4 : 0.36)) },
      legend: {
        labelColor: colors.ink, titleColor: colors.muted, titleFontWeight: "normal", labelFontSize: 11,
        titleFontSize: 11, orient: narrow ? "bottom" : "right", columns: narrow ? 5 : 1,
        gradientDirection: narrow ? "horizontal" : "vertical", labelLimit: 260,
      },
      title: { color: colors.ink, subtitleColor: colors.muted, anchor: "start", fontSize: 14, offset: 10 },
    };
  }

  /** Draw a chart with Vega at a width; exported charts get a title and a legend. */
  async function embedChart(container, chart, width, colors, exported) {
    const spec = fillPlaceholders(chart.spec, colors, chart.chosen);
    const names = new Set(chart.chosen.map((option) => option.name));
    const shown = chart.choice ? chart.records.filter((row) => names.has(row[chart.choice.column])) : chart.records;
    spec.datasets = { ...spec.datasets, rows: shown };
    spec.width = width;
    spec.autosize = { type: "fit-x", contains: "padding" };
    spec.config = vegaConfig(colors, width);
    if (exported) {
      const subtitle = chart.choice && !chart.choice.several ? [chart.chosen[0].name] : [];
      spec.title = { text: chart.title, subtitle };
      spec.background = colors.ground;
      spec.padding = 12;
    } else if (chart.choice && chart.choice.several) {
      spec.config.legend.disable = true; // the buttons above are the legend
    }
    const embedOptions = { mode: "vega-lite", actions: false, defaultStyle: false, renderer: "svg", tooltip: showTooltip, logLevel: 1 };
    return (await vegaEmbed(container, spec, embedOptions)).view;
  }

  async function draw(chart, width, colors) {
    const outer = chart.figure.querySelector(".drawing"), container = document.createElement("div");
    width = Math.floor(width ?? outer.clientWidth);
    if (width < 40) return;
    chart.drawn = width;
    const drawId = (chart.drawId = (chart.drawId ?? 0) + 1);
    const view = await embedChart(container, chart, width, colors ?? (dark.matches ? DARK : LIGHT), false);
    if (drawId !== chart.drawId) { view.finalize(); return; } // a later call is drawing
    chart.view?.finalize();
    chart.view = view;
    outer.replaceChildren(container);
    outer.style.minHeight = "0";
  }

  function showTooltip(_handler, event, _item, value) {
    const box = document.getElementById("tooltip");
    if (value == null || value === "") { box.hidden = true; return; }
    box.replaceChildren(...Object.entries(value).map(([title, text]) => {
      const line = document.createElement("div"), name = document.createElement("b");
      name.textContent = title;
      line.append(name, String(text));
      return line;
    }));
    box.hidden = false;
    const x = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 6);
    const y = event.clientY + 16 + box.offsetHeight > innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 16;
    box.style.left = `${Math.max(4, x)}px`;
    box.style.top = `${Math.max(4, y)}px`;
  }

  // ---------------------------------------------------------------- selection in a chart

  function addChoice(chart) {
    const container = chart.figure.querySelector(".choice"), { options, several } = chart.choice;
    if (!several) {
      const select = document.createElement("select");
      select.setAttribute("aria-label", `${chart.title}: selection`);
      select.append(...options.map((name) => new Option(name, name, false, name === chart.chosen[0].name)));
      select.addEventListener("change", () => { chart.chosen = [{ name: select.value, slot: 0 }]; draw(chart); });
      container.append(select);
      return;
    }
    const buttons = options.map((name) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.addEventListener("click", () => {
        const selected = chart.chosen.find((option) => option.name === name);
        if (selected) {
          if (chart.chosen.length > 1) chart.chosen = chart.chosen.filter((option) => option !== selected);
        } else {
          const slot = LIGHT.palette.findIndex((_, n) => !chart.chosen.some((option) => option.slot === n));
          if (slot < 0) return;
          chart.chosen = [...chart.chosen, { name, slot }];
        }
        chart.paint();
        draw(chart);
      });
      return button;
    });
    chart.paint = () => buttons.forEach((button, n) => {
      const selected = chart.chosen.find((option) => option.name === options[n]);
      button.setAttribute("aria-pressed", String(Boolean(selected)));
      button.style.setProperty("--slot", selected ? (dark.matches ? DARK : LIGHT).palette[selected.slot] : "");
    });
    chart.paint();
    container.append(...buttons);
  }

  // ---------------------------------------------------------------- saving

  async function save(chart, kind) {
    const view = await embedChart(document.createElement("div"), chart, EXPORT_WIDTH, LIGHT, true);
    const file = kind === "svg"
      ? new Blob([await view.toSVG()], { type: "image/svg+xml" })
      : await new Promise((done) => view.toCanvas(2).then((canvas) => canvas.toBlob(done, "image/png")));
    view.finalize();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(file);
    link.download = `${chart.name}.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  // ---------------------------------------------------------------- tables

  function sortBy(heading) {
    const table = heading.closest("table"), body = table.tBodies[0], column = heading.cellIndex;
    const numeric = heading.classList.contains("number");
    const before = heading.getAttribute("aria-sort");
    const down = before ? before === "ascending" : numeric;
    for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[column].dataset.key;
    const compare = (a, b) => (numeric ? Number(a) - Number(b) : a.localeCompare(b));
    const sorted = [...body.rows].sort((first, second) => {
      const a = key(first), b = key(second);
      if (a === "" || b === "") return (a === "") - (b === "");
      return down ? compare(b, a) : compare(a, b);
    });
    body.append(...sorted);
  }

  // ---------------------------------------------------------------- gallery

  function showMoment(gallery) {
    const input = gallery.querySelector("input"), moment = Number(input.value);
    const seen = JSON.parse(gallery.querySelector(".seen").textContent);
    gallery.querySelector("output").textContent = seen[moment - 1].toLocaleString("en");
    for (const item of gallery.querySelectorAll("li")) {
      const edits = Number(item.dataset.edits.split(",")[moment - 1]);
      for (const sprite of item.querySelectorAll(".now, .changed")) {
        sprite.style.setProperty("--column", moment);
        sprite.classList.toggle("absent", edits < 0);
      }
      item.querySelector(".edits").textContent = edits < 0 ? "not yet stored, 0" : String(edits);
    }
  }

  // ---------------------------------------------------------------- the page

  for (const chart of charts) {
    chart.figure = document.getElementById(chart.name);
    chart.records = records(chart.rows);
    chart.chosen = chart.choice ? chart.choice.chosen.map((name, slot) => ({ name, slot })) : [];
    if (chart.choice) addChoice(chart);
    for (const button of chart.figure.querySelectorAll("[data-saves]")) {
      button.setAttribute("aria-label", `Save ${chart.title} as ${button.textContent}`);
      button.addEventListener("click", () => save(chart, button.dataset.saves));
    }
  }
  const chartOf = new Map(charts.map((chart) => [chart.figure, chart]));
  const lazyDrawing = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = chartOf.get(entry.target);
      if (entry.isIntersecting && !chart.drawn) draw(chart);
    }
  }, { rootMargin: "600px" });
  for (const chart of charts) lazyDrawing.observe(chart.figure);

  let resizeTimer = 0;
  addEventListener("resize", () => {
    clearTimeout(resizeTimer);
    resizeTimer = setTimeout(() => {
      for (const chart of charts) {
        const width = Math.floor(chart.figure.querySelector(".drawing").clientWidth);
        if (chart.drawn && chart.drawn !== width) draw(chart);
      }
    }, 150);
  });
  const redrawAll = () => { for (const chart of charts) { chart.paint?.(); if (chart.drawn) draw(chart); } };
  dark.addEventListener("change", redrawAll);
  addEventListener("beforeprint", () => { for (const chart of charts) draw(chart, PRINT_WIDTH, LIGHT); });
  addEventListener("afterprint", redrawAll);
  addEventListener("scroll", () => { document.getElementById("tooltip").hidden = true; }, { passive: true });

  for (const heading of document.querySelectorAll("thead th")) {
    heading.querySelector("button").addEventListener("click", () => sortBy(heading));
  }
  for (const gallery of document.querySelectorAll(".gallery")) {
    gallery.querySelector("input").addEventListener("input", () => showMoment(gallery));
    showMoment(gallery);
  }
  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", () => {
      const text = document.getElementById(button.dataset.copies);
      getSelection().selectAllChildren(text);
      document.execCommand("copy");
      button.textContent = "Copied";
    });
  }
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const sectionObserver = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const id of links.keys()) { const section = document.getElementById(id); if (section) sectionObserver.observe(section); }
  document.documentElement.dataset.ready = "true";
})();
