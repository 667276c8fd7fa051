// What the server does now: its status, polled while the tab is seen, and the segments.

const statusEvery = 2_000; // ms
const segmentsEvery = 10_000; // ms; a minute when there are many
const manySegments = 1_000;
const segmentsPage = 10_000; // what an answer has at most
const maxSegmentPages = 10;
const maxSegmentRows = 100;
const maxHistory = 150; // polls: five minutes
const leastHistory = 30; // that a chart has room for
const maxHistoryRows = 30;
const averaged = 5; // polls: what a large figure is the mean of

const now = {
	samples: [], // {at, uptime, ...}: what polls said, the newest last; a restart of the server begins anew
	points: [], // what each difference of two says
	segments: [],
	allSegments: true, // or there are more
	bars: [],
	clock: 0, // the server's, ms
	segmentsDue: 0,
	refusal: null, // why the token must not see the figures; it is not asked again
	timer: 0,
	stop: new AbortController(),
	well: false,
	recovered: [], // told when the server answers again
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

function showTiles(status) {
	const tiles = status.role === 'replica' ? replicaTiles : writerTiles;
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
	const rows = now.points.slice(-maxHistoryRows).reverse();
	if (!$('history').open || rows.length === 0) return;
	fillTable($('history-table'), `${plural(rows.length, 'poll')}, as of when this was opened`, ['Time', 'Records/s', 'Bytes/s', 'Median', '99 %', 'Behind'],
		rows.map((p) => [when(p.at), amount(p.records), size(p.bytes), latency(p.p50, p), latency(p.p99, p), duration(p.lag)]));
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
	say($('about'), `${status.version} · ${status.store}`);
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
		now.segmentsDue = 0;
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

async function pollSegments(signal) {
	let all = [], page, pages = 0;
	do {
		const last = all.at(-1);
		page = (await ask('segments', { after: last && (last.lastId || last.id) }, signal)).segments;
		all = all.concat(page);
	} while (page.length === segmentsPage && ++pages < maxSegmentPages);
	now.segments = all;
	now.allSegments = page.length < segmentsPage;
	showSegments();
	showSegmentRows();
}

function showSegments() {
	const svg = $('segments-chart'), all = now.segments;
	if (all.length === 0 || svg.clientWidth === 0) return;
	now.bars = bars(all, svg.clientWidth, now.clock);
	drawSegments(svg, now.bars, svg.clientWidth, svg.clientHeight);
	svg.setAttribute('aria-label', `${plural(all.length, 'segment')} with ${plural(all.reduce((n, s) => n + (s.runs ?? 0), 0), 'run')} and ` +
		`${size(all.reduce((n, s) => n + s.bytes, 0))} in all, from ${when(now.bars[0].from)} to ${when(now.clock)}. The table below has them all.`);
	say($('segments-from'), when(now.bars[0].from));
	say($('segments-to'), now.allSegments ? `now, ${when(now.clock)}` : 'and newer ones, which are not shown');
}

function showSegmentRows() {
	if (!$('segments-details').open) return;
	const all = now.segments;
	fillTable($('segments-table'), all.length > maxSegmentRows ? `The newest ${maxSegmentRows} of ${count(all.length)}` : `All ${count(all.length)}, the newest first`,
		['Segment', 'State', 'From', 'Runs', 'Records', 'Bytes', 'Sequences'], all.slice(-maxSegmentRows).reverse().map((s) => [
			s.lastId > s.id ? `${s.id} to ${s.lastId}` : String(s.id), s.endSeq === undefined ? 'active' : s.sealed ? 'sealed' : 'being flushed',
			s.startTimeMs ? when(s.startTimeMs) : '–', count(s.runs ?? 0), count(s.records), size(s.bytes),
			`${count(s.startSeq)} to ${s.endSeq === undefined ? 'now' : count(s.endSeq - 1)}`]));
}

// choose shows what a bar of the chart stands for.
function choose(event) {
	const x = event.clientX - $('segments-chart').getBoundingClientRect().left;
	const bar = now.bars.findLast((b) => b.x <= x);
	if (!bar) return;
	say($('segments-readout'), describeBar(bar));
	const bottom = $('segments-chart').clientHeight;
	$('segments-chart').querySelector('.chosen').setAttribute('d', `M${bar.x} ${bottom - bar.height}h${bar.width}V${bottom}h-${bar.width}Z`);
}

// poll polls as long as the tab is seen and the server takes the token.
async function poll() {
	clearTimeout(now.timer);
	now.stop.abort();
	if (document.hidden) return;
	const { signal } = now.stop = new AbortController();
	try {
		await pollStatus(signal);
		if (now.samples.length > 0 && performance.now() >= now.segmentsDue) {
			now.segmentsDue = performance.now() + (now.segments.length > manySegments ? 6 : 1) * segmentsEvery;
			await pollSegments(signal);
		}
	} catch (err) {
		if (signal.aborted) return;
		// The segments: what is shown of them stays, and the next status says what is wrong.
	}
	if ($('token').hidden) now.timer = setTimeout(poll, statusEvery);
}
