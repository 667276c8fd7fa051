// What the server does now: its status, polled while the tab is seen.

const statusEvery = 2_000; // ms
const maxHistory = 150; // polls: five minutes
const leastHistory = 30; // that a chart has room for
const maxHistoryRows = 30;
const averaged = 5; // polls: what a large figure is the mean of

const now = {
	samples: [], // what the latest polls said, the newest last; a pause, or a restart of the server, begins anew
	points: [], // what each difference of two says
	clock: 0, // the server's, ms
	refusal: null, // why the token must not see the figures; it is not asked again
	timer: 0,
	stop: new AbortController(),
	well: false, // the server answered the latest poll
	recovered: [], // told when it does again
};

// quantile of what was counted between two cumulative histograms, in the unit of its bounds: null of nothing, Infinity above the last bound.
function quantile(q, bounds, before, after) {
	const rank = q * (after.at(-1) - before.at(-1));
	if (!(rank > 0)) return null;
	let below = 0;
	for (let i = 0; i < bounds.length; i++) {
		const upTo = after[i] - before[i];
		if (upTo >= rank) {
			const lower = i > 0 ? bounds[i - 1] : 0;
			return lower + ((bounds[i] - lower) * (rank - below)) / (upTo - below);
		}
		below = upTo;
	}
	return Infinity;
}

// difference is what happened between two statuses.
function difference(a, b) {
	const seconds = Math.max(0.001, (b.uptimeMs - a.uptimeMs) / 1000);
	const { le, counts } = b.appendLatency;
	return {
		at: b.nowMs,
		records: (b.ingest.records - a.ingest.records) / seconds,
		bytes: (b.ingest.bytes - a.ingest.bytes) / seconds,
		p50: quantile(0.5, le, a.appendLatency.counts, counts),
		p99: quantile(0.99, le, a.appendLatency.counts, counts),
		most: le.at(-1), // beyond which a histogram knows no more
		lag: (b.lagMs ?? 0) / 1000,
	};
}

const latency = (v, point) => (v === null ? '–' : v === Infinity ? `over ${duration(point.most)}` : duration(v));

// The large figures: [name, of a point, shown as].
const writerTiles = [
	['Records a second', 'records', (v) => amount(v)],
	['Bytes a second', 'bytes', (v) => size(v)],
	['Append, median', 'p50', latency],
	['Append, 99 %', 'p99', latency],
];
const replicaTiles = [['Behind the writer', 'lag', (v) => duration(v)]];
const tilesOf = (status) => (status?.role === 'replica' ? replicaTiles : writerTiles);

function showTiles(status) {
	const tiles = tilesOf(status);
	if ($('tiles').childElementCount !== tiles.length) {
		$('tiles').replaceChildren(...tiles.map(([name]) => el('div', {}, el('dt', {}, name),
			el('dd', {}, el('div', { class: 'value' }, '–')), el('dd', { 'aria-hidden': 'true' }, shape('svg', { class: 'spark' })))));
	}
	const back = now.samples.at(-1 - averaged) ?? now.samples[0];
	const mean = back === status ? null : difference(back, status);
	tiles.forEach(([, field, format], i) => {
		const tile = $('tiles').children[i];
		const value = field === 'lag' ? (status.lagMs ?? 0) / 1000 : mean?.[field] ?? null;
		say(tile.querySelector('.value'), value === null ? '–' : format(value, mean));
		drawSpark(tile.querySelector('svg'), now.points.map((p) => p[field]), Math.max(leastHistory, now.points.length));
	});
}

function showFacts(s) {
	const facts = [
		['Frontier', count(s.frontier)], ['Segments', count(s.segments)], ['Runs', count(s.runs)], ['Tables', count(s.tables)],
		['Stored', size(s.storedBytes)], ['Not yet in tables', size(s.unflushedBytes)], ['Followers', count(s.followers)],
		['Epoch', count(s.epoch)], ['Up', duration(s.uptimeMs / 1000)],
	];
	if ($('facts').childElementCount !== facts.length) {
		$('facts').replaceChildren(...facts.map(([name]) => el('div', {}, el('dt', {}, name), el('dd'))));
	}
	facts.forEach(([, value], i) => say($('facts').children[i].lastChild, value));
}

function showReplicas(replicas) {
	$('replicas').hidden = !replicas;
	if (!replicas) return;
	fillTable($('replica-table'), 'As this server sees them', ['Replica', 'State', 'Behind', 'Records behind', 'Frontier'], replicas.map((r) => [
		r.url, r.error ? [r.error, 'bad'] : r.ready ? 'ready' : ['not ready', 'bad'],
		r.error ? '–' : duration(r.lagMs / 1000), r.error ? '–' : count(r.lagSequences), r.error ? '–' : count(r.frontier),
	]));
}

function showHistory() {
	const points = now.points.slice(-maxHistoryRows).reverse(), tiles = tilesOf(now.samples.at(-1));
	if (!$('history').open || points.length === 0) return;
	fillTable($('history-table'), `${plural(points.length, 'poll')}, as of when this was opened`, ['Time', ...tiles.map(([name]) => name)],
		points.map((p) => [when(p.at), ...tiles.map(([, field, format]) => format(p[field], p))]));
}

function setState(kind, text) {
	$('state').dataset.state = kind;
	say($('state'), text);
}

function took(status) {
	const before = now.samples.at(-1);
	if (before && (status.uptimeMs <= before.uptimeMs || status.ingest.records < before.ingest.records)) now.samples = []; // it was started again
	else if (before) now.points = [...now.points, difference(before, status)].slice(-maxHistory);
	now.samples = [...now.samples, status].slice(-1 - averaged);
	now.clock = status.nowMs;
	setState(status.ready ? 'good' : 'warn', `${status.role === 'replica' ? 'Replica' : 'Writer'}, ${status.ready ? 'ready' : `not ready: ${status.reason}`}`);
	say($('about'), [status.version, status.store].filter(Boolean).join(' · '));
	showTiles(status);
	showFacts(status);
	showReplicas(status.replicas);
	if ($('history-table').rows.length === 0) showHistory(); // it was opened before there was anything
}

// refused shows why there are no figures; null that there are. The token may still be good for keys and streams.
function refused(why) {
	for (const id of ['now-refused', 'segments-refused']) {
		$(id).hidden = why === null;
		say($(id), why === null ? '' : `Not shown: ${why}. What the token allows is below.`);
	}
	for (const id of ['tiles', 'facts', 'history', 'segments-figure', 'segments-details']) $(id).hidden = why !== null;
	if (why !== null) $('replicas').hidden = true;
}

async function pollStatus(signal) {
	if (now.refusal !== null) return pollReady(signal);
	try {
		took(await ask('status', {}, signal));
		refused(null);
		answered();
	} catch (err) {
		signal.throwIfAborted();
		now.samples = [];
		segments.due = 0;
		if (err.status === 401) return needToken(err.message);
		if (err.status === 403) {
			now.refusal = err.message;
			refused(err.message);
			return pollReady(signal);
		}
		failed(err);
	}
}

// failed says what is wrong with a server that gave no answer, or is not ready to.
function failed(err) {
	now.well = false;
	for (const value of document.querySelectorAll('#tiles .value')) say(value, '–');
	if (err.status === 503) setState('warn', `Not ready: ${err.message.replace(/^not ready: /, '')}`);
	else setState('bad', `${err.status === 0 ? 'No answer' : 'Failing'}: ${err.message}. Trying again.`);
}

// pollReady is for a token that must not see the figures: anybody may ask whether the server is ready.
async function pollReady(signal) {
	try {
		await request('-/ready', signal);
		setState('good', 'Ready');
		answered();
	} catch (err) {
		signal.throwIfAborted();
		failed(err);
	}
}

function answered() {
	if (!now.well) now.recovered.forEach((f) => f());
	now.well = true;
}

// poll polls as long as the tab is seen and the server takes the token.
async function poll() {
	clearTimeout(now.timer);
	now.stop.abort();
	if (document.hidden) {
		now.samples = [];
		return;
	}
	const { signal } = now.stop = new AbortController();
	try {
		await pollStatus(signal);
		if (now.samples.length > 0) await pollSegments(signal);
	} catch {
		if (signal.aborted) return;
		// The segments: what is shown of them stays, and the next status says what is wrong.
	}
	if ($('token').hidden) now.timer = setTimeout(poll, statusEvery);
}
