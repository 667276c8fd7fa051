// The segments along time: a chart of all, and a table of the newest.

const segmentsEvery = 10_000; // ms; a minute when there are many
const manySegments = 1_000;
const segmentsPage = 10_000; // what an answer has at most
const maxSegmentPages = 10;
const maxSegmentRows = 100;

const segments = {
	all: [],
	complete: true, // or there are newer ones
	bars: [], // that are drawn
	due: 0, // when they are asked for again, as performance.now()
};

// pollSegments asks for all of them, when it is time to.
async function pollSegments(signal) {
	if (performance.now() < segments.due) return;
	segments.due = performance.now() + (segments.all.length > manySegments ? 6 : 1) * segmentsEvery;
	let all = [], page, pages = 0;
	do {
		const last = all.at(-1);
		page = (await ask('segments', { after: last && (last.lastId || last.id) }, signal)).segments;
		all = all.concat(page);
	} while (page.length === segmentsPage && ++pages < maxSegmentPages);
	segments.all = all;
	segments.complete = page.length < segmentsPage;
	showSegments();
	showSegmentRows();
}

function showSegments() {
	const svg = $('segments-chart'), all = segments.all;
	if (all.length === 0 || svg.clientWidth === 0) return;
	segments.bars = bars(all, svg.clientWidth, now.clock);
	drawSegments(svg, segments.bars, svg.clientWidth, svg.clientHeight);
	svg.setAttribute('aria-label', `${plural(all.length, 'segment')} with ${plural(all.reduce((n, s) => n + (s.runs ?? 0), 0), 'run')} and ` +
		`${size(all.reduce((n, s) => n + s.bytes, 0))} in all, from ${when(segments.bars[0].from)} to ${when(now.clock)}. The table below says more.`);
	say($('segments-from'), when(segments.bars[0].from));
	say($('segments-to'), segments.complete ? `now, ${when(now.clock)}` : 'and newer ones, which are not shown');
}

function showSegmentRows() {
	if (!$('segments-details').open) return;
	const all = segments.all;
	fillTable($('segments-table'), all.length > maxSegmentRows ? `The newest ${maxSegmentRows} of ${count(all.length)}` : `All ${count(all.length)}, the newest first`,
		['Segment', 'State', 'From', 'Runs', 'Records', 'Bytes', 'Sequences'], all.slice(-maxSegmentRows).reverse().map((s) => [
			s.lastId > s.id ? `${s.id} to ${s.lastId}` : String(s.id), s.endSeq === undefined ? 'active' : s.sealed ? 'sealed' : 'being flushed',
			s.startTimeMs ? when(s.startTimeMs) : '–', count(s.runs ?? 0), count(s.records), size(s.bytes),
			`${count(s.startSeq)} to ${s.endSeq === undefined ? 'now' : count(s.endSeq - 1)}`]));
}

// choose shows what a bar of the chart stands for.
function choose(event) {
	const x = event.clientX - $('segments-chart').getBoundingClientRect().left;
	const bar = segments.bars.findLast((b) => b.x <= x);
	if (!bar) return;
	say($('segments-readout'), describeBar(bar));
	const bottom = $('segments-chart').clientHeight;
	$('segments-chart').querySelector('.chosen').setAttribute('d', `M${bar.x} ${bottom - bar.height}h${bar.width}V${bottom}h-${bar.width}Z`);
}
