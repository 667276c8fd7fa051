// Asking the server. Paths are relative, so that the page works behind a proxy that adds a prefix.

const api = 'api/v1/log/';
const askTimeout = 15_000; // ms, of everything but streams
const maxEvent = 64 << 20; // characters of one line of a stream: more than the largest value there can be

// Failure is an answer that is not a success, or (status 0) none.
class Failure extends Error {
	constructor(status, message) {
		super(message);
		this.status = status;
	}

	// final: asking again does not help.
	get final() {
		return this.status >= 400 && this.status < 500 && this.status !== 429;
	}
}

// The token is kept in this tab only, and leaves it in a header only. Listeners are told when it changes.
const token = {
	listeners: [],
	get() { return sessionStorage.getItem('annals-token') ?? ''; },
	set(value) {
		if (value) sessionStorage.setItem('annals-token', value);
		else sessionStorage.removeItem('annals-token');
		for (const changed of this.listeners) changed();
	},
};

// request sends one GET and returns the response, or throws a Failure. An abort by `signal` throws what the signal says.
async function request(path, signal, accept = 'application/json') {
	const headers = { Accept: accept };
	if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
	let response;
	try {
		response = await fetch(path, { headers, signal, cache: 'no-store', redirect: 'error', referrerPolicy: 'no-referrer' });
	} catch {
		if (signal?.aborted && signal.reason?.name !== 'TimeoutError') throw signal.reason;
		throw new Failure(0, 'the server cannot be reached');
	}
	if (response.ok) return response;
	let message = `the server answers ${response.status}`;
	try {
		message = (await response.json()).message || message;
	} catch { /* not of our making: a proxy's page */ }
	throw new Failure(response.status, message);
}

// ask returns the JSON of a route. Parameters that are undefined are left out.
async function ask(route, parameters = {}, signal = undefined) {
	const query = new URLSearchParams(Object.entries(parameters).filter(([, v]) => v !== undefined));
	const limit = AbortSignal.timeout(askTimeout);
	const response = await request(`${api}${route}?${query}`, signal ? AbortSignal.any([signal, limit]) : limit);
	try {
		return await response.json();
	} catch {
		signal?.throwIfAborted();
		throw new Failure(0, 'the answer broke off');
	}
}

// lines yields the lines of a streamed response, until it ends. A stream that is silent for `silence` ms has failed.
async function* lines(response, silence) {
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
	let parts = [], length = 0;
	try {
		for (;;) {
			const { done, value } = await within(reader.read(), silence);
			if (done) return;
			const pieces = value.split('\n');
			for (const piece of pieces.slice(0, -1)) {
				yield parts.join('') + piece;
				parts = [];
				length = 0;
			}
			parts.push(pieces.at(-1));
			length += pieces.at(-1).length;
			if (length > maxEvent) throw new Failure(0, 'a line of the stream is too long');
		}
	} finally {
		reader.cancel().catch(() => {}); // it may have failed
	}
}

// within fails when a promise takes longer than ms.
function within(promise, ms) {
	let timer;
	const late = new Promise((_, reject) => {
		timer = setTimeout(() => reject(new Failure(0, 'the stream is silent')), ms);
	});
	return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

// pause waits, or throws when the signal aborts.
function pause(ms, signal) {
	return new Promise((resolve, reject) => {
		const timer = setTimeout(resolve, ms);
		signal.addEventListener('abort', () => {
			clearTimeout(timer);
			reject(signal.reason);
		}, { once: true });
	});
}
