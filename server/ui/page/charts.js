// Charts, drawn by hand. Each has a table beside it that says the same.

const column = 3; // px, of the segments' chart: narrower ones are put together
const maxLayers = 24; // of a bar: more runs than that are no longer told apart

function shape(name, attributes) {
	const s = document.createElementNS('http://www.w3.org/2000/svg', name);
	for (const [k, v] of Object.entries(attributes)) s.setAttribute(k, v);
	return s;
}

// drawSpark draws values along time, the newest at the right; null is a gap. There is room for `room` of them.
function drawSpark(svg, values, room) {
	const top = Math.max(...values.filter(Number.isFinite), 0) || 1;
	let line = '', area = '', began = null;
	values.forEach((v, i) => {
		const x = (room - values.length + i + 1).toFixed(1);
		const known = v !== null;
		const y = (28 - 25 * Math.min(1, (v ?? 0) / top)).toFixed(1);
		if (known) {
			line += `${began === null ? 'M' : 'L'}${x} ${y}`;
			area += `${began === null ? `M${x} 30L` : 'L'}${x} ${y}`;
			began ??= x;
		}
		if (began !== null && (!known || i === values.length - 1)) {
			area += `L${known ? x : x - 1} 30Z`;
			began = null;
		}
	});
	svg.setAttribute('viewBox', `0 0 ${room} 30`);
	svg.setAttribute('preserveAspectRatio', 'none');
	svg.replaceChildren(shape('path', { class: 'area', d: area }), shape('path', { class: 'line', d: line }));
}

// bars puts segments into bars of a chart of some width: {x, width, count, records, bytes, runs, active, from, to, first, last}.
// When there are more segments than columns, those that begin in the same one are added up; `bytes` is then all of them.
function bars(segments, width, now) {
	const starts = segments.map((s) => s.startTimeMs || now);
	const from = starts[0], span = Math.max(1, now - from);
	const crowded = segments.length * column > width;
	const all = [];
	segments.forEach((s, i) => {
		const place = Math.floor(((starts[i] - from) / span) * (width / column));
		let bar = all.at(-1);
		if (!crowded || !bar || bar.place !== place) {
			bar = { place, count: 0, records: 0, bytes: 0, runs: 0, from: starts[i], first: s.id };
			all.push(bar);
		}
		bar.count++;
		bar.records += s.records;
		bar.bytes += s.bytes;
		bar.runs = Math.max(bar.runs, s.runs ?? 0);
		bar.active = s.endSeq === undefined;
		bar.to = starts[i + 1] ?? now;
		bar.last = s.lastId || s.id;
	});
	// As wide as their time, but wide enough to be seen.
	const wide = all.map((b) => Math.max(column, ((b.to - b.from) / span) * width));
	const scale = width / wide.reduce((a, b) => a + b, 0);
	let x = 0;
	all.forEach((b, i) => {
		b.x = x;
		b.width = wide[i] * scale;
		x += b.width;
	});
	return all;
}

// drawSegments draws bars into an SVG of some size, in few elements whatever their number.
function drawSegments(svg, all, width, height) {
	const top = Math.max(...all.map((b) => b.bytes), 1);
	let sealed = '', active = '', layers = '', activeLayers = '';
	for (const b of all) {
		const gap = b.width > 2 * column ? 1 : 0;
		b.height = Math.max(2, (b.bytes / top) * (height - 4));
		const x = b.x.toFixed(1), w = (b.width - gap).toFixed(1), y = height - b.height;
		const rect = `M${x} ${y.toFixed(1)}h${w}V${height}h-${w}Z`;
		if (b.active) active += rect;
		else sealed += rect;
		if (b.count > 1 || b.runs > maxLayers || b.height / b.runs < 3) continue;
		for (let i = 1; i < b.runs; i++) {
			const stroke = `M${x} ${(height - (b.height * i) / b.runs).toFixed(1)}h${w}`;
			if (b.active) activeLayers += stroke;
			else layers += stroke;
		}
	}
	svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
	svg.replaceChildren(
		shape('path', { class: 'sealed', d: sealed }), shape('path', { class: 'layers', d: layers }),
		shape('path', { class: 'active', d: active }), shape('path', { class: 'active-layers', d: activeLayers }),
		shape('path', { class: 'base', d: `M0 ${height}H${width}` }), shape('path', { class: 'chosen', d: '' }));
}

function describeBar(b) {
	const name = b.count > 1 ? `${count(b.count)} segments, ${b.first} to ${b.last}, with up to ${plural(b.runs, 'run')} each`
		: `Segment ${b.first === b.last ? b.first : `${b.first} to ${b.last}`}${b.active ? ' (active)' : ''}, ${plural(b.runs, 'run')}`;
	return `${name}: ${plural(b.records, 'record')}, ${size(b.bytes)}, from ${when(b.from)}${b.active ? '' : ` to ${when(b.to)}`}`;
}
