package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// fileVersion is that of the files that WriteFile writes.
const fileVersion = 1

// line is one line of a file: one of these. The first has the version, the last the end.
type line struct {
	Version   int                          `json:"version,omitempty"`
	Process   *Process                     `json:"process,omitempty"`
	Operation *Operation                   `json:"operation,omitempty"`
	Final     *finalKey                    `json:"final,omitempty"`
	Cursors   map[string]map[string]uint64 `json:"cursors,omitempty"`
	Frontier  *uint64                      `json:"frontier,omitempty"`
	End       bool                         `json:"end,omitempty"`
}

// finalKey is one key of the final log.
type finalKey struct {
	Key     string   `json:"key"`
	Records []Record `json:"records"`
}

// WriteFile writes a history as JSON, an object a line.
func (h *History) WriteFile(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = fmt.Errorf("write history %s: %w", path, err)
		}
	}()
	w := bufio.NewWriter(f)
	if err := h.write(json.NewEncoder(w)); err != nil {
		return err
	}
	return w.Flush()
}

func (h *History) write(e *json.Encoder) error {
	if err := e.Encode(line{Version: fileVersion}); err != nil {
		return err
	}
	for i := range h.Processes {
		if err := e.Encode(line{Process: &h.Processes[i]}); err != nil {
			return err
		}
	}
	for i := range h.Operations {
		if err := e.Encode(line{Operation: &h.Operations[i]}); err != nil {
			return err
		}
	}
	if h.Final != nil {
		for _, key := range slices.Sorted(maps.Keys(h.Final.Records)) {
			if err := e.Encode(line{Final: &finalKey{key, h.Final.Records[key]}}); err != nil {
				return err
			}
		}
		if err := e.Encode(line{Cursors: h.Final.Cursors, Frontier: &h.Final.Frontier}); err != nil {
			return err
		}
	}
	return e.Encode(line{End: true})
}

// ReadFile reads a history that WriteFile wrote.
func ReadFile(path string) (*History, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	defer f.Close()
	h, err := read(json.NewDecoder(bufio.NewReader(f)))
	if err != nil {
		return nil, fmt.Errorf("read history %s: %w", path, err)
	}
	return h, nil
}

func read(d *json.Decoder) (*History, error) {
	d.DisallowUnknownFields()
	h := &History{}
	final := Final{Records: make(map[string][]Record)}
	for n := 1; ; n++ {
		var l line
		if err := d.Decode(&l); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		switch {
		case n == 1 && l.Version != fileVersion:
			return nil, fmt.Errorf("version %d is not %d", l.Version, fileVersion)
		case l.Process != nil:
			h.Processes = append(h.Processes, *l.Process)
		case l.Operation != nil:
			h.Operations = append(h.Operations, *l.Operation)
		case l.Final != nil:
			final.Records[l.Final.Key] = l.Final.Records
		case l.Frontier != nil:
			final.Frontier, final.Cursors = *l.Frontier, l.Cursors
			h.Final = &final
		case l.End:
			return h, nil
		}
	}
}
