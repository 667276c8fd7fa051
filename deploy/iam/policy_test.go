package iam

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A policy is what the files hold. Nothing in them denies, and nothing has a condition: with one on the names that may
// be listed S3 may answer 403, not 404, for objects that are not there, which annals asks for all the time.
type policy struct {
	Version   string
	Statement []statement
}

type statement struct {
	Sid, Effect      string
	Action, Resource []string

	patterns []*regexp.Regexp // of Resource
}

// load reads a policy for a bucket and a prefix.
func load(t *testing.T, file, bucket, prefix string) *policy {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	text = bytes.ReplaceAll(text, []byte("BUCKET"), []byte(bucket))
	text = bytes.ReplaceAll(text, []byte("PREFIX"), []byte(prefix))
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	p := new(policy)
	require.NoError(t, in.Decode(p), file)
	require.Equal(t, "2012-10-17", p.Version)
	for i := range p.Statement {
		s := &p.Statement[i]
		require.Equal(t, "Allow", s.Effect)
		require.NotEmpty(t, s.Action)
		require.NotEmpty(t, s.Resource)
		for _, resource := range s.Resource {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(resource), `\*`, ".*")
			s.patterns = append(s.patterns, regexp.MustCompile("^"+pattern+"$"))
		}
	}
	return p
}

// allows says which statement allows a need, as its index, or -1.
func (p *policy) allows(n need) int {
	for i, s := range p.Statement {
		for _, action := range s.Action {
			if action != n.action {
				continue
			}
			for _, pattern := range s.patterns {
				if pattern.MatchString("arn:aws:s3:::" + n.resource) {
					return i
				}
			}
		}
	}
	return -1
}

// actions are all that the policy allows, by statement and action.
func (p *policy) actions() map[grant]bool {
	all := make(map[grant]bool)
	for _, s := range p.Statement {
		for _, action := range s.Action {
			all[grant{s.Sid, action}] = true
		}
	}
	return all
}

// A grant is one action of one statement.
type grant struct{ sid, action string }

// A need is a permission that a request takes.
type need struct{ action, resource string }
