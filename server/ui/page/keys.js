// Keys by prefix, a page at a time. Each is a link to its stream: the place is in the address, the token never is.

const keysPerPage = 25;
const shownKey = 160; // bytes of a key in the list

const keys = { prefix: new Uint8Array(), next: undefined, failed: false, stop: new AbortController() };

// place reads the address: {prefix, key}, bytes each; null where there is none.
function place() {
	const p = new URLSearchParams(location.hash.slice(1));
	const bytes = (name) => {
		try {
			if (p.has(`${name}_b64`)) return typedBytes(p.get(`${name}_b64`));
		} catch { /* not base64: as if there were none */ }
		return p.has(name) ? new TextEncoder().encode(p.get(name)) : null;
	};
	return { prefix: bytes('prefix'), key: bytes('key') };
}

// addressOf is the address of a place. Bytes that are not text are in it as base64.
function addressOf({ prefix, key }) {
	const p = new URLSearchParams();
	for (const [name, bytes] of [['prefix', prefix], ['key', key]]) {
		if (!bytes || (name === 'prefix' && bytes.length === 0)) continue;
		const text = textOf(bytes);
		if (text === null) p.set(`${name}_b64`, base64Of(bytes));
		else p.set(name, text);
	}
	return `#${p}`;
}

const same = (a, b) => a !== null && b !== null && base64Of(a) === base64Of(b);

// typed returns the bytes of the field, or null after it said what is wrong with them.
function typed() {
	const text = $('prefix').value;
	try {
		const bytes = $('coding').value === 'base64' ? typedBytes(text) : new TextEncoder().encode(text);
		$('prefix').removeAttribute('aria-invalid');
		return bytes;
	} catch {
		$('prefix').setAttribute('aria-invalid', 'true');
		say($('keys-note'), 'This is not base64.');
		return null;
	}
}

async function listKeys(prefix, after = undefined) {
	keys.stop.abort();
	const { signal } = keys.stop = new AbortController();
	keys.prefix = prefix;
	try {
		const page = await ask('keys', { prefix_b64: base64Of(prefix), after_b64: after, limit: keysPerPage }, signal);
		keys.failed = false;
		keys.next = page.nextKey;
		showKeys(page.keys.map((k) => bytesOf(k.key)), after !== undefined);
	} catch (err) {
		if (signal.aborted) return;
		keys.failed = true;
		if (err.status === 401) return needToken(err.message);
		say($('keys-note'), `No keys: ${err.message}.`);
		$('key-list').replaceChildren();
		$('key-pages').hidden = true;
	}
}

function showKeys(list, further) {
	$('key-list').replaceChildren(...list.map((key) => {
		const link = el('a', { href: addressOf({ prefix: keys.prefix, key }) }, el('bdi', {}, ...visibleKey(key, shownKey)));
		link.bytes = key;
		return el('li', {}, link);
	}));
	markKey();
	const what = keys.prefix.length > 0 ? ' with this prefix' : '';
	say($('keys-note'), list.length === 0 ? `No ${further ? 'further ' : ''}keys${what}.`
		: `${plural(list.length, further ? 'further key' : 'key')}${what}${keys.next === undefined ? '' : ', and more'}, in byte order.`);
	$('key-pages').hidden = keys.next === undefined && !further;
}

// markKey marks the key whose stream is open.
function markKey() {
	for (const link of $('key-list').querySelectorAll('a')) {
		if (same(link.bytes, stream.key)) link.setAttribute('aria-current', 'true');
		else link.removeAttribute('aria-current');
	}
}

function startKeys() {
	$('find').addEventListener('submit', (event) => {
		event.preventDefault();
		const prefix = typed();
		if (!prefix) return;
		history.replaceState(null, '', addressOf({ prefix, key: stream.key }));
		listKeys(prefix);
	});
	$('open').addEventListener('click', () => {
		const key = typed();
		if (key) location.hash = addressOf({ prefix: keys.prefix, key });
	});
	$('keys-first').addEventListener('click', () => listKeys(keys.prefix));
	$('keys-next').addEventListener('click', () => (keys.next === undefined ? say($('keys-note'), 'This is the last page.') : listKeys(keys.prefix, keys.next)));
	now.recovered.push(() => keys.failed && listKeys(keys.prefix));
}
