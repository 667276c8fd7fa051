// Package auth holds the bearer tokens of a server: what each may do, the file that lists
// them, and the set that is in force. It knows nothing of HTTP or of logs.
//
// A token is a random secret. The file has its SHA-256 only:
//
//	tokens:
//	  - name: mailer
//	    hash: sha256:3c9f...
//	    scopes: [read, append]
//	    prefixes: [user/42/]
//	    expires: 2027-01-31T00:00:00Z
//
// Invariants:
//
//  1. A secret is looked up by its hash, and only if it has the form of Generate: 256 random
//     bits cannot be guessed, from the file neither, so that neither salt nor a slow hash is
//     needed, and the time that a look-up takes tells nothing of use.
//  2. A Token never changes. A set that replaces another keeps the tokens that are the same in both
//     and ends all others: whoever holds one for long asks Over, or waits with Bound.
//  3. The prefixes of a token are sorted and none begins with another, so that the ranges of their
//     keys are disjoint and in byte order.
package auth
