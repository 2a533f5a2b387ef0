"use strict";
// The page of `selfens label`. The server decides what comes next; this shows it and sends answers, one at a time.

const token = location.hash.slice(1) || sessionStorage.getItem("token") || "";
const at = id => document.getElementById(id);
const COMMANDS = { Enter: "accept", Backspace: "undo", ArrowRight: "skip", ArrowLeft: "back", x: "junk", z: "zoom", t: "train", r: "measure", n: "type", "/": "type" };
const KEYS = [..."1234567890abcdefghijklmopqsuvwy"]; // without the letters of commands

let current = null;   // what the server said of the row that is shown
let marked = null;    // the class that Enter accepts
let since = 0, busy = false, polling = 0;
const images = new Map();  // row -> promise of an address
const kept = JSON.parse(sessionStorage.getItem("kept") || "null") || { window: crypto.getRandomValues(new Uint32Array(2)).join("-"), done: [] };

function keep() {
    kept.done = kept.done.slice(-500);
    sessionStorage.setItem("kept", JSON.stringify(kept));
    sessionStorage.setItem("token", token);
}

async function ask(address, given) {
    const options = { headers: { "X-Token": token }, cache: "no-store" };
    if (given !== undefined) {
        options.method = "POST";
        options.headers["Content-Type"] = "application/json";
        options.body = JSON.stringify({ window: kept.window, ...given });
    }
    let answer;
    try {
        answer = await fetch(address, options);
    } catch {
        throw new Error("The server does not answer. Start selfens label again: labels so far are kept, and this page goes on.");
    }
    if (answer.ok) return answer;
    let said = null;
    try { said = (await answer.json()).error; } catch { /* not ours */ }
    throw new Error(said ? said[0].toUpperCase() + said.slice(1) : `The server answered ${answer.status}; reload the page.`);
}

function image(row) {
    if (!images.has(row)) {
        if (images.size > 12) {
            const [first, old] = images.entries().next().value;
            images.delete(first);
            old.then(URL.revokeObjectURL, () => {});
        }
        const made = ask(`/image/${row}`).then(answer => answer.blob()).then(blob => URL.createObjectURL(blob));
        made.catch(() => images.delete(row));
        images.set(row, made);
    }
    return images.get(row);
}

function element(tag, text, name) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
}

async function show(view) {
    current = view;
    status(view);
    at("main").hidden = view.row === null;
    at("end").hidden = view.row !== null;
    if (view.row === null) {
        at("end").textContent = `All ${view.rows.toLocaleString("en")} rows have been seen: ${view.labeled} labeled, ${view.skipped} skipped, ${view.junk} junk. Backspace undoes the last.`;
        return;
    }
    const shown = at("shown");
    shown.classList.remove("zoomed");
    if (view.kind === "image") {
        const picture = new Image();
        picture.alt = view.name;
        try {
            picture.src = await image(view.row);
            await picture.decode();
        } catch (error) {
            if (current === view) shown.replaceChildren(element("p", error.message));
        }
        if (current !== view) return;
        if (picture.naturalWidth) {
            picture.className = Math.max(picture.naturalWidth, picture.naturalHeight) < 128 ? "small" : "";
            shown.replaceChildren(picture);
        }
    } else if (view.kind === "text") {
        const text = element("div", view.text || "(empty)", "text");
        text.dir = "auto";
        shown.replaceChildren(text);
    } else {
        const table = element("table");
        for (const [name, value] of view.cells) {
            const line = element("tr"), cell = element("td", value);
            cell.dir = "auto";
            line.append(element("th", name), cell);
            table.append(line);
        }
        shown.replaceChildren(table);
    }
    shown.scrollTop = 0;
    at("name").textContent = view.name;
    const guess = view.suggested ? ` The model says '${view.suggested.label}' (${Math.round(100 * view.suggested.probability)} %).` : "";
    const given = view.label === null ? "" : ` Labeled '${view.label}'.`;
    at("why").textContent = `· ${view.why}.${given}${guess}`.replace("..", ".");
    marked = view.label !== null ? view.label : view.suggested ? view.suggested.label : null;
    mark();
    since = performance.now();
    document.body.dataset.row = view.row;
    for (const row of view.kind === "image" ? view.next : []) image(row).catch(() => {});
}

function status(view) {
    at("data").textContent = view.data;
    const took = view.seconds === null ? "" : ` · last took ${view.seconds.toFixed(1)} s`;
    at("counts").textContent = `${view.labeled.toLocaleString("en")} of ${view.rows.toLocaleString("en")} labeled${took}`;
    at("kept").textContent = `Labels are kept in ${view.journal}; train finds them there. A model is trained every ${view.every} labels.`;
    at("doing").textContent = doing(view);
    at("message").textContent = view.message;
    classes(view);
    curve(view);
    clearTimeout(polling);
    polling = setTimeout(poll, view.state.doing ? 500 : 5000);
}

function doing({ state, to_measure }) {
    const random = to_measure ? `${to_measure} random rows to go` : "";
    const words = {
        encoding: () => `encoding ${state.done.toLocaleString("en")} of ${state.rows.toLocaleString("en")} rows; until then rows are random`,
        training: () => `training on ${state.labels} labels`,
        measuring: () => `measuring the error with ${state.labels} labels`,
    }[state.doing];
    return [words ? words() : "", random].filter(Boolean).join(" · ");
}

function classes(view) {
    const buttons = view.classes.map(({ name, count }, position) => {
        const button = element("button");
        button.type = "button";
        button.dataset.label = name;
        const label = element("span", name);
        label.dir = "auto";
        button.append(element("kbd", KEYS[position] || " "), label, element("span", count.toLocaleString("en"), "count"));
        return button;
    });
    at("classes").replaceChildren(...buttons);
    at("classes").classList.toggle("many", buttons.length > 6);
    at("known").replaceChildren(...view.classes.map(({ name }) => { const option = element("option"); option.value = name; return option; }));
    mark();
}

function mark() {
    for (const button of at("classes").children) {
        button.setAttribute("aria-pressed", String(button.dataset.label === marked));
    }
}

function curve({ curve: points, notes, drawn }) {
    at("curve").hidden = !points.length;
    if (!points.length) return;
    const last = points[points.length - 1], most = Math.max(...points.map(p => p.labels), 1), top = Math.max(...points.map(p => p.high), 10);
    const x = p => 30 + 280 * p.labels / most, y = value => 130 - 120 * value / top;
    const line = points.map(p => `${x(p)},${y(p.error)}`).join(" ");
    const band = [...points.map(p => `${x(p)},${y(p.high)}`), ...[...points].reverse().map(p => `${x(p)},${y(p.low)}`)].join(" ");
    const draw = (tag, about, text) => {
        const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
        for (const [name, value] of Object.entries(about)) made.setAttribute(name, value);
        if (text !== undefined) made.textContent = text;
        return made;
    };
    at("chart").replaceChildren(
        draw("line", { class: "axis", x1: 30, y1: 130, x2: 310, y2: 130 }), draw("line", { class: "axis", x1: 30, y1: 10, x2: 30, y2: 130 }),
        draw("polygon", { class: "band", points: band }), draw("polyline", { class: "line", points: line }),
        ...points.map(p => draw("circle", { class: "dot", cx: x(p), cy: y(p.error), r: 3 })),
        draw("text", { x: 2, y: 16 }, `${Math.round(top)} %`), draw("text", { x: 14, y: 133 }, "0"),
        draw("text", { x: 310, y: 145, "text-anchor": "end" }, `${most} labels`),
    );
    at("verdict").textContent = `Wrong on about ${last.error.toFixed(0)} % of rows it has not seen (90 % interval ${last.low.toFixed(0)} to ${last.high.toFixed(0)}). ${outlook(points)}`;
    const few = drawn < 50 ? ` ${drawn} labels are of random rows; r adds 50, which make the error surer.` : "";
    at("honest").textContent = [...notes, few].join(" ");
}

function outlook(points) {
    const last = points[points.length - 1], before = points.filter(p => p.labels <= 0.67 * last.labels).pop();
    if (!before) return "";
    const change = before.error - last.error, unsure = Math.hypot(last.high - last.low, before.high - before.low) / 2;
    const from = `from ${before.labels} to ${last.labels} labels it went from ${before.error.toFixed(0)} to ${last.error.toFixed(0)} %`;
    if (change > unsure / 2) return `More labels still help: ${from}.`;
    return unsure > 6 ? `Too early to say whether more labels help: ${from}.` : `More labels hardly help: ${from}.`;
}

async function poll() {
    try {
        const view = await (await ask("/status")).json();
        if (busy) return;
        const isNew = current && current.state.doing === "training" && view.state.doing !== "training";
        const isLeft = current && current.row === null && view.labeled + view.skipped + view.junk < view.rows;
        const isSame = current && current.row !== null && current.label === null && marked === null && !at("typed").value;
        if (!current || isLeft || (isNew && isSame)) await act(() => next());
        else status({ ...view, message: view.message || at("message").textContent });
        if (current) current.state = view.state;
    } catch (error) {
        at("message").textContent = error.message;
        clearTimeout(polling);
        polling = setTimeout(poll, 3000);
    }
}

async function next(row) {
    const wanted = row === undefined ? "" : `&row=${row}`;
    await show(await (await ask(`/row?window=${kept.window}${wanted}`)).json());
}

async function act(work) {
    if (busy) return;
    busy = true;
    at("message").textContent = "";
    try {
        await work();
    } catch (error) {
        at("message").textContent = error.message;
    } finally {
        busy = false;
    }
}

function answer(given) {
    if (!current || current.row === null) return;
    return act(async () => {
        const { row, why, label } = current, view = await (await ask("/answer", { row, why, seconds: (performance.now() - since) / 1000, ...given })).json();
        kept.done.push([row, label]);
        keep();
        await show(view);
    });
}

function undo() {
    const last = kept.done[kept.done.length - 1];
    if (!last) { at("message").textContent = "There is nothing to undo in this window."; return; }
    return act(async () => {
        await ask("/answer", { row: last[0], label: last[1] });
        kept.done.pop();
        keep();
        await next(last[0]);
    });
}

function lookBack() {
    const rows = kept.done.map(([row]) => row), place = rows.lastIndexOf(current ? current.row : -1);
    const before = place > 0 ? rows[place - 1] : place < 0 ? rows[rows.length - 1] : undefined;
    if (before === undefined) { at("message").textContent = "There is no row before this one in this window."; return; }
    return act(() => next(before));
}

function run(command) {
    if (command === "accept" && marked === null) at("message").textContent = "Choose a class first: press its key, or type a new one.";
    else if (command === "accept") answer({ label: marked });
    else if (command === "skip") current && current.why === "shown again" && current.label !== null ? act(() => next()) : answer({ mark: "skipped" });
    else if (command === "junk") answer({ mark: "junk" });
    else if (command === "undo") undo();
    else if (command === "back") lookBack();
    else if (command === "zoom") at("shown").classList.toggle("zoomed");
    else if (command === "type") at("typed").focus();
    else act(async () => status(await (await ask("/do", { do: command })).json()));
}

function move(step) {
    const names = [...at("classes").children].map(button => button.dataset.label);
    if (!names.length) return;
    const place = names.indexOf(marked);
    marked = names[(place < 0 ? (step > 0 ? 0 : names.length - 1) : place + step + names.length) % names.length];
    mark();
    at("classes").children[names.indexOf(marked)].scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target === at("typed")) {
        if (event.key === "Escape") at("typed").blur();
        return;
    }
    const command = COMMANDS[event.key], place = KEYS.indexOf(event.key);
    if (event.key === "ArrowDown" || event.key === "ArrowUp") move(event.key === "ArrowDown" ? 1 : -1);
    else if (command) { if (!event.repeat) run(command); }
    else if (place >= 0) {
        const button = at("classes").children[place], count = at("classes").children.length;
        const known = count ? `the keys are ${KEYS[0]} to ${KEYS[Math.min(count, KEYS.length) - 1]}` : "there are no classes yet";
        if (!button) at("message").textContent = `No class has the key ${event.key}; ${known}, and n adds a class.`;
        else if (!event.repeat) answer({ label: button.dataset.label });
    } else return;
    event.preventDefault();
});
at("classes").addEventListener("click", event => {
    const button = event.target.closest("button");
    if (button) answer({ label: button.dataset.label });
});
at("commands").addEventListener("click", event => {
    const button = event.target.closest("button");
    if (button) { button.blur(); run(button.dataset.do); }
});
at("new").addEventListener("submit", event => {
    event.preventDefault();
    const name = at("typed").value.trim();
    at("typed").value = "";
    at("typed").blur();
    if (name) answer({ label: name });
});
keep();
act(() => next()).then(() => { if (!current) polling = setTimeout(poll, 1000); });
