// The page's beginning: the token, the address, and who is told of what.

function needToken(why) {
	setState('warn', 'A token is needed');
	say($('token-why'), token.get() ? `The server does not take this token: ${why}.` : 'This server answers only who has a token, with the scope read.');
	$('token').hidden = false;
	for (const id of ['now', 'replicas', 'segments', 'log']) $(id).hidden = true;
	if (document.activeElement === document.body) $('token-value').focus();
}

// tokenChanged begins anew, with the token or without.
function tokenChanged() {
	$('token-in-use').hidden = token.get() === '';
	$('token').hidden = true;
	$('token-value').value = '';
	for (const id of ['now', 'segments', 'log']) $(id).hidden = false;
	segments.due = 0;
	now.refusal = null;
	now.samples = [];
	poll();
	listKeys(keys.prefix);
	openStream(stream.key);
}

// goToPlace goes to the place that the address says.
function goToPlace(moved) {
	const { prefix, key } = place();
	if (prefix && !same(prefix, keys.prefix)) {
		const text = textOf(prefix);
		$('coding').value = text === null ? 'base64' : 'text';
		$('prefix').value = text ?? base64Of(prefix);
		listKeys(prefix);
	}
	if (key === null ? stream.key === null : same(key, stream.key)) return;
	openStream(key);
	if (moved && key) $('stream-title').focus(); // where a key was chosen, reading goes on there
}

function start() {
	$('skip').addEventListener('click', (event) => {
		event.preventDefault(); // the address holds the place
		$('main').focus();
		$('main').scrollIntoView();
	});
	$('token-form').addEventListener('submit', (event) => {
		event.preventDefault();
		const value = $('token-value').value.trim();
		if (!/^[ -~]*$/.test(value)) return say($('token-why'), 'This is no token: it has characters that no token has.');
		token.set(value);
		$('main').focus();
	});
	$('forget').addEventListener('click', () => {
		token.set('');
		$('main').focus();
	});
	token.listeners.push(tokenChanged);
	$('history').addEventListener('toggle', showHistory);
	$('segments-details').addEventListener('toggle', showSegmentRows);
	for (const type of ['pointermove', 'pointerdown']) $('segments-chart').addEventListener(type, choose);
	new ResizeObserver(showSegments).observe($('segments-chart'));
	document.addEventListener('visibilitychange', poll);
	addEventListener('hashchange', () => goToPlace(true));
	startKeys();
	startStream();
	$('token-in-use').hidden = token.get() === '';
	poll();
	goToPlace(false);
	if (!place().prefix) listKeys(keys.prefix);
}

start();
