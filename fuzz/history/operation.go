package history

import "time"

// Outcome is what a client knows of a request after it has ended. The names are written to
// files: do not change them.
type Outcome string

const (
	// Pending has not ended. At the end of a history it is as good as Unknown.
	Pending Outcome = ""
	// OK was answered, and the operation has the answer.
	OK Outcome = "ok"
	// Refused had no effect and never will. Of an append that was refused by a condition, or for its
	// number, the operation has the answer.
	Refused Outcome = "refused"
	// Unknown may have taken effect, may yet do so at any time, or never.
	Unknown Outcome = "unknown"
)

// Operation is one request of a client. Exactly one of the pointers is set: it says what was asked
// and, when the outcome is OK, what was answered.
type Operation struct {
	Client  string `json:"client"`
	Process int    `json:"process,omitempty"` // who answered; 0: not known
	// Call is when the request began, Return when its answer was there; 0: it never was. Both count
	// from the start of the recorder, on its clock.
	Call    time.Duration `json:"call"`
	Return  time.Duration `json:"return,omitempty"`
	Outcome Outcome       `json:"outcome,omitempty"`
	Note    string        `json:"note,omitempty"` // for people: the error

	Append     *Append     `json:"append,omitempty"`
	Scan       *Scan       `json:"scan,omitempty"`
	Count      *Count      `json:"count,omitempty"`
	Keys       *Keys       `json:"keys,omitempty"`
	Follow     *Follow     `json:"follow,omitempty"`
	SetCursors *SetCursors `json:"set_cursors,omitempty"`
	GetCursors *GetCursors `json:"get_cursors,omitempty"`
}

// KeyValue is one record to append.
type KeyValue struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// KeySequence is a key and a sequence: a condition, or a cursor.
type KeySequence struct {
	Key      string `json:"key"`
	Sequence uint64 `json:"sequence"`
}

// Append is one batch.
type Append struct {
	Records []KeyValue `json:"records,omitempty"`
	// Memory: it was asked to be acknowledged from memory. Its answer then does not say
	// that it is durable.
	Memory       bool          `json:"memory,omitempty"`
	ExpectedNext []KeySequence `json:"expected_next,omitempty"`
	// Producer and Number of an idempotent append. All attempts with the same number are the same, but for those before
	// the first that was not refused.
	Producer string `json:"producer,omitempty"`
	Number   uint64 `json:"number,omitempty"`

	// First and Timestamp are the answer of one that is OK.
	First     uint64 `json:"first,omitempty"`
	Timestamp int64  `json:"timestamp,omitempty"`
	// Conflict is the answer of one that was refused by a condition: the key, and its newest sequence.
	Conflict *KeySequence `json:"conflict,omitempty"`
	// LastNumber is the answer of one that was refused for its number: the last that was taken.
	LastNumber *uint64 `json:"last_number,omitempty"`
}

// Record is one record that was read.
type Record struct {
	Sequence  uint64 `json:"sequence"`
	Timestamp int64  `json:"timestamp,omitempty"`
	Value     string `json:"value"`
}

// Scan is one page of a key's records (GET /scan, with follow=true or without; not as an
// event stream, and without since_ms).
type Scan struct {
	Key   string `json:"key"`
	Start uint64 `json:"start,omitempty"`
	End   uint64 `json:"end,omitempty"`  // exclusive; 0: no end
	Last  int    `json:"last,omitempty"` // the newest so many; 0: from Start on
	// Limit is what the page may hold; one with fewer records has all that were readable. 0: it may have ended
	// anywhere. A driver must see to it that bytes are no limit (max_bytes, or too many reads under way).
	Limit int `json:"limit,omitempty"`

	Records []Record `json:"records,omitempty"`
	Next    uint64   `json:"next"`
}

// Count is the number of a key's records in a range.
type Count struct {
	Key   string `json:"key"`
	Start uint64 `json:"start,omitempty"`
	End   uint64 `json:"end,omitempty"` // exclusive; 0: no end

	Count uint64 `json:"count"`
}

// Keys is one page of keys.
type Keys struct {
	Prefix string  `json:"prefix,omitempty"`
	After  *string `json:"after,omitempty"` // nil: from the first key

	Keys []string `json:"keys,omitempty"`
	More bool     `json:"more,omitempty"` // there are keys behind the last one
}

// Stream is what a follower follows: a key, or all keys with a prefix.
type Stream struct {
	Key    string `json:"key"`
	Prefix bool   `json:"prefix,omitempty"`
	Start  uint64 `json:"start,omitempty"`
}

// Item is what came by a stream: a record, or (with Complete) word that every record of all streams below Next came.
type Item struct {
	Complete bool   `json:"complete,omitempty"`
	Key      string `json:"key,omitempty"`
	Record
	Next uint64        `json:"next"`
	At   time.Duration `json:"at"` // when it came; Call.Deliver sets it
}

// Follow is one connection of a follower (an event stream, or POST /follow), or the whole
// life of a client.Follower, which connects again by itself. Of several connections with the same Name each
// goes on where the one before it ended: with a key behind its newest record or what was complete, with a prefix at what
// was complete.
type Follow struct {
	Name    string   `json:"name"`
	Streams []Stream `json:"streams"`

	Items []Item `json:"items,omitempty"`
}

// SetCursors moves cursors of a consumer forward.
type SetCursors struct {
	Consumer string        `json:"consumer"`
	Cursors  []KeySequence `json:"cursors"`

	Answer []KeySequence `json:"answer,omitempty"` // of the same keys, in the same order
}

// GetCursors reads the cursors of some keys.
type GetCursors struct {
	Consumer string   `json:"consumer"`
	Keys     []string `json:"keys"`

	Answer []KeySequence `json:"answer,omitempty"` // without the keys that have none
}
