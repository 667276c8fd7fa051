// The records of one key: a page of them, or the newest as they come.

const recordsPerPage = 25;
const maxRecords = 500; // in the page; older ones leave it
const maxShown = 64 << 10; // bytes of a value that are kept and can be shown
const preview = 320; // characters of a value that are shown at first
const deepest = 32; // levels that are indented: deeper ones would make of a small value a very large text
const silence = 45_000; // ms: the server gives a sign of life every 15 s
const drawEvery = 200; // ms, while records come
const tellEvery = 5_000; // ms between what a screen reader is told of a tail
const firstWait = 500, longestWait = 15_000; // ms, between two attempts to connect

const stream = {
	key: null,
	first: 0, // the oldest sequence that is shown
	next: 0, // where to go on behind what is shown
	tip: false, // what is shown goes up to the newest record
	failed: false,
	live: false,
	stop: new AbortController(),
};

// summary is what is kept of a record.
function summary({ sequence, timestampMs, value }) {
	return { sequence, timestampMs, size: sizeOf(value), head: bytesOf(value, maxShown).subarray(0, maxShown) };
}

// reading says how bytes are best shown: [kind, short text, function that makes the whole text]; null: the short one is all.
function reading({ head, size }) {
	const text = textOf(head, head.length < size);
	if (text === null || /[\u0000-\u0008\u000b\u000c\u000e-\u001f]/.test(text)) {
		return ['bytes', dump(head.subarray(0, preview / 4)), head.length > preview / 4 ? () => dump(head) : null];
	}
	let json = false;
	if (/^\s*[{[]/.test(text) && head.length === size) {
		try {
			JSON.parse(text); // the text is shown, indented: a parsed number may be another one
			json = true;
		} catch { /* it only looked like JSON */ }
	}
	const cut = text.slice(0, preview).replace(/[\ud800-\udbff]$/, ''); // no half of a pair
	const more = text.length > preview || head.length < size;
	const whole = () => (json ? indent(text) : text);
	return [json ? 'JSON' : 'text', more ? `${cut} …` : text, more || whole() !== text ? whole : null];
}

// indent lays out valid JSON by its own tokens, so that no number or name changes.
function indent(json) {
	let depth = 0;
	const line = () => `\n${'  '.repeat(Math.min(depth, deepest))}`;
	const tokens = json.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
	return tokens.map((t, i) => {
		const empty = (tokens[i + 1] === '}' || tokens[i + 1] === ']');
		if (t === '{' || t === '[') return depth++, empty ? t : t + line();
		if (t === '}' || t === ']') return depth--, /^[{[]$/.test(tokens[i - 1]) ? t : line() + t;
		return t === ',' ? t + line() : t === ':' ? ': ' : t;
	}).join('');
}

function recordItem(r, fresh) {
	const [kind, brief, whole] = reading(r);
	const item = el('li', fresh ? { class: 'fresh' } : {},
		el('p', { class: 'meta' }, el('b', {}, `#${r.sequence}`), el('time', {}, when(r.timestampMs, true)), el('span', {}, `${size(r.size)}${r.size ? `, ${kind}` : ''}`)),
		el('pre', {}, ...visible(brief)));
	item.sequence = r.sequence;
	if (whole === null) return item;
	const name = r.head.length < r.size ? `The first ${size(r.head.length)}` : kind === 'JSON' ? 'Laid out' : 'All of it';
	const details = el('details', {}, el('summary', { 'aria-label': `${name} of record ${r.sequence}` }, name), el('pre'));
	details.addEventListener('toggle', () => details.lastChild.replaceChildren(...(details.open ? visible(whole()) : [])));
	item.append(details);
	return item;
}

// show puts records, oldest first, before those that are shown, or in their place.
function show(values, { add = false } = {}) {
	const items = values.slice(-maxRecords).map((r) => recordItem(r, add)).reverse();
	if (add) $('records').prepend(...items);
	else $('records').replaceChildren(...items);
	while ($('records').childElementCount > maxRecords) $('records').lastElementChild.remove();
	stream.first = $('records').lastElementChild?.sequence ?? 0;
}

// begin ends what is under way in the stream and returns the signal of what follows.
function begin() {
	stream.stop.abort();
	stream.stop = new AbortController();
	setLive(false);
	return stream.stop.signal;
}

function setLive(on) {
	stream.live = on;
	$('live').setAttribute('aria-pressed', String(on));
}

const scan = async (parameters, signal) => {
	const page = await ask('scan', { key_b64: base64Of(stream.key), ...parameters }, signal);
	return { values: page.values.map(summary), next: page.nextSequence };
};

// showPage shows one page, or says why there is none. `none` is said of an empty one, which changes nothing if `keep`.
async function showPage(parameters, none, { keep = false, tip = false } = {}) {
	const signal = begin();
	try {
		const { values, next } = await scan(parameters, signal);
		stream.failed = false;
		if (values.length === 0 && keep) return say($('stream-note'), none);
		stream.next = next;
		stream.tip = tip;
		show(values);
		say($('stream-note'), values.length === 0 ? none : `${plural(values.length, 'record')}, ${[...new Set([values[0].sequence, values.at(-1).sequence])].join(' to ')}.`);
	} catch (err) {
		if (!signal.aborted) streamFailed(err);
	}
}

function streamFailed(err) {
	stream.failed = true;
	setLive(false);
	if (err.status === 401) return needToken(err.message);
	say($('stream-note'), `No records: ${err.message}.`);
}

const showNewest = () => showPage({ last: recordsPerPage }, 'This key has no records.', { tip: true });

function openStream(key) {
	begin();
	stream.key = key;
	stream.tip = false;
	$('records').replaceChildren();
	$('stream-title').replaceChildren(...(key ? ['Stream of ', el('bdi', {}, ...visibleKey(key, 1024))] : ['No stream is open']));
	$('stream-hint').hidden = key !== null;
	$('stream-tools').hidden = key === null;
	say($('stream-note'), '');
	markKey();
	if (key) return showNewest();
}

// tail shows what comes from stream.next on, until the signal aborts or there is no hope. It connects again after a failure: what came
// meanwhile is fetched first, as many as the page shows, so that a page that was away for long is not sent everything.
async function tail(signal) {
	let wait = 0, timer = 0, teller = 0, told = -tellEvery, newest = 0;
	let pending = [], upTo = stream.next; // what came and is not shown yet, and where it ends
	const draw = () => {
		timer = 0;
		if (signal.aborted) return; // who goes on fetches it again
		stream.next = upTo;
		if (pending.length === 0) return;
		show(pending, { add: true });
		newest = pending.at(-1).sequence;
		teller ||= setTimeout(tell, told + tellEvery - performance.now());
		pending = [];
	};
	const tell = () => {
		teller = 0;
		if (signal.aborted) return;
		told = performance.now();
		say($('stream-note'), `Live: record ${newest} is the newest.`);
	};
	const took = (values, next) => {
		pending = [...pending, ...values].slice(-maxRecords);
		upTo = next;
		timer ||= setTimeout(draw, drawEvery);
	};
	while (!signal.aborted) {
		try {
			const { values, next } = await scan(stream.tip ? { start_seq: upTo, last: maxRecords } : { last: recordsPerPage }, signal);
			if (!stream.tip) show([]);
			stream.tip = true;
			took(values, next);
			say($('stream-note'), 'Live: records appear as they come.');
			wait = 0;
			await followFrom(next, took, signal);
		} catch (err) {
			if (signal.aborted) return;
			clearTimeout(teller);
			teller = 0;
			if (err.final) return streamFailed(err);
			say($('stream-note'), `Live tail interrupted: ${err.message}. Connecting again.`);
		}
		wait = Math.min(longestWait, Math.max(firstWait, 2 * wait));
		await pause(wait * (0.75 + Math.random() / 2), signal).catch(() => {});
	}
}

// followFrom hands out the records of an event stream, each with where to go on behind it, until the stream ends. It only fails.
async function followFrom(start, took, signal) {
	const query = new URLSearchParams({ key_b64: base64Of(stream.key), follow: 'true', start_seq: start });
	const connection = new AbortController(); // which ends with this function
	const ends = AbortSignal.any([signal, connection.signal]);
	try {
		const response = await within(request(`${api}scan?${query}`, ends, 'text/event-stream'), askTimeout);
		let event = {};
		for await (const line of lines(response, silence)) {
			if (line !== '') {
				const colon = line.indexOf(': ');
				if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 2);
				continue;
			}
			if (event.event === 'end') throw new Failure(0, JSON.parse(event.data).message);
			if (event.id !== undefined) took(event.data === undefined ? [] : [summary(JSON.parse(event.data))], Number(event.id));
			event = {};
		}
		throw new Failure(0, 'the stream ended');
	} finally {
		connection.abort();
	}
}

function toggleLive() {
	if (stream.live) {
		begin();
		return say($('stream-note'), 'Paused.');
	}
	const signal = begin();
	setLive(true);
	tail(signal);
}

function startStream() {
	$('live').addEventListener('click', toggleLive);
	$('newest').addEventListener('click', showNewest);
	$('older').addEventListener('click', () => showPage({ end_seq: stream.first, last: recordsPerPage }, 'There are no older records.', { keep: true }));
	$('newer').addEventListener('click', () => showPage({ start_seq: stream.next, limit: recordsPerPage }, 'There are no newer records yet.', { keep: true }));
	$('jump').addEventListener('submit', (event) => {
		event.preventDefault();
		showPage({ start_seq: $('sequence').value, limit: recordsPerPage }, 'There are no records from there on.');
	});
	// A hidden tab follows nothing; it catches up when it is seen again.
	document.addEventListener('visibilitychange', () => {
		if (!stream.live) return;
		stream.stop.abort();
		if (document.hidden) return;
		stream.stop = new AbortController();
		tail(stream.stop.signal);
	});
	now.recovered.push(() => stream.failed && stream.key && showNewest());
}
