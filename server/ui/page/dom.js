// What is shown: elements, bytes, numbers. All data of the log is untrusted and becomes text nodes, never markup.

const $ = (id) => document.getElementById(id);

// el makes an element. Children are nodes or text.
function el(name, attributes = {}, ...children) {
	const e = document.createElement(name);
	for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
	e.append(...children);
	return e;
}

// say sets a text only if it changes: screen readers read a live region again when it is set.
function say(element, text) {
	if (element.textContent !== text) element.textContent = text;
}

// fillTable replaces a table's content. A cell is text, or [text, class].
function fillTable(table, caption, heads, rows) {
	const cell = (c) => (Array.isArray(c) ? el('td', { class: c[1] }, c[0]) : el('td', {}, c));
	table.replaceChildren(
		el('caption', {}, caption),
		el('thead', {}, el('tr', {}, ...heads.map((h) => el('th', { scope: 'col' }, h)))),
		el('tbody', {}, ...rows.map((r) => el('tr', {}, ...r.map(cell)))));
}

const grouped = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });

const count = (n) => grouped.format(n);
const amount = (n) => (n < 100 ? short : grouped).format(n);
const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? '' : 's'}`;

function size(bytes) {
	let unit = 0;
	for (; bytes >= 1024 && unit < 5; unit++) bytes /= 1024;
	return `${amount(bytes)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][unit]}`;
}

function duration(seconds) {
	for (const [unit, of] of [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]]) {
		if (seconds >= of) return `${amount(seconds / of)} ${unit}`;
	}
	return `${amount(seconds * 1000)} ms`;
}

// when is a time of the log in the time zone of whoever looks; `exact`: with its milliseconds.
function when(ms, exact = false) {
	const d = new Date(ms);
	if (Number.isNaN(d.getTime())) return 'no time';
	const two = (n, digits = 2) => String(n).padStart(digits, '0');
	return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}${exact ? `.${two(d.getMilliseconds(), 3)}` : ''}`;
}

// bytesOf decodes base64: of a text that begins with as much as gives `most` bytes.
function bytesOf(base64, most = Infinity) {
	const text = most === Infinity ? base64 : base64.slice(0, Math.ceil(most / 3) * 4);
	return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

// typedBytes decodes base64 of either alphabet, as people paste it.
const typedBytes = (text) => bytesOf(text.trim().replaceAll('-', '+').replaceAll('_', '/'));

// sizeOf is how many bytes a base64 text stands for.
function sizeOf(base64) {
	const padding = base64.endsWith('==') ? 2 : base64.endsWith('=') ? 1 : 0;
	return (base64.length / 4) * 3 - padding;
}

function base64Of(bytes) {
	let text = '';
	for (const b of bytes) text += String.fromCharCode(b);
	return btoa(text);
}

// textOf is the text that bytes are in UTF-8, or null. `cut`: the last character may be in half.
function textOf(bytes, cut = false) {
	try {
		return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes, { stream: cut });
	} catch {
		return null;
	}
}

// Characters that are not seen, or that change the order of others, so that a text could look like another one.
const unseen = /[\u0000-\u0008\u000b-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/u;

const aroundUnseen = new RegExp(`(${unseen.source})`, 'u');

// visible returns nodes for a text, in which such characters are escapes.
function visible(text) {
	return text.split(aroundUnseen).filter(Boolean).map((part) =>
		unseen.test(part) ? el('span', { class: 'escape' }, `\\u{${part.codePointAt(0).toString(16)}}`) : part);
}

// visibleKey returns nodes for a key: as text or, if it is none, with its other bytes as escapes.
function visibleKey(bytes, most = Infinity) {
	if (bytes.length === 0) return [el('em', {}, 'the empty key')];
	const head = bytes.subarray(0, most);
	const text = textOf(head, head.length < bytes.length);
	const nodes = text !== null ? text.split(/([\t\n])/).flatMap((part) =>
		part === '\t' || part === '\n' ? el('span', { class: 'escape' }, part === '\t' ? '\\t' : '\\n') : visible(part))
		: [...head].map((b) => b > 0x1f && b < 0x7f ? String.fromCharCode(b) : el('span', { class: 'escape' }, `\\x${hex(b)}`));
	if (head.length < bytes.length) nodes.push(el('span', { class: 'muted' }, ` … (${size(bytes.length)})`));
	return nodes;
}

const hex = (b) => b.toString(16).padStart(2, '0');

// dump is bytes in hexadecimal, eight a line, which fits a phone.
function dump(bytes) {
	const lines = [];
	for (let i = 0; i < bytes.length; i += 8) {
		const row = [...bytes.subarray(i, i + 8)];
		const ascii = row.map((b) => (b > 0x1f && b < 0x7f ? String.fromCharCode(b) : '.')).join('');
		lines.push(`${row.map(hex).join(' ').padEnd(23)}  ${ascii}`);
	}
	return lines.join('\n');
}
