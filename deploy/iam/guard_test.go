package iam

import (
	"encoding/xml"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

const (
	bucket = s3fake.Bucket
	prefix = "logs/one"
)

// A guard stands before an S3 server and holds each process to the policy of its access key, as AWS would. It remembers
// what was used, and what was refused.
type guard struct {
	server *s3fake.Server

	mu       sync.Mutex // guards what is below
	policies map[string]*policy
	used     map[string]map[grant]bool
	denied   []string
	// spoil, if it is set, may fail a request that is allowed.
	spoil func(*s3fake.Request) *s3fake.Error
}

func newGuard(t *testing.T) *guard {
	g := &guard{server: s3fake.New(t), policies: make(map[string]*policy), used: make(map[string]map[grant]bool)}
	g.server.SetHook(g.judge)
	return g
}

// environ is the environment of a process that has a policy, which has the key's name.
func (g *guard) environ(t *testing.T, who string) []string {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.policies[who] = load(t, who+".json", bucket, prefix)
	g.used[who] = make(map[grant]bool)
	return []string{
		"AWS_ACCESS_KEY_ID=" + who, "AWS_SECRET_ACCESS_KEY=secret", "AWS_EC2_METADATA_DISABLED=true",
		"ANNALS_STORE=s3://" + bucket + "/" + prefix + "?endpoint=" + g.server.URL + "&region=us-east-1&path_style=true",
	}
}

// judge allows a request, or answers that access is denied.
func (g *guard) judge(r *s3fake.Request) s3fake.Action {
	g.mu.Lock()
	defer g.mu.Unlock()
	who, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="), "/")
	p := g.policies[who]
	if p == nil {
		return s3fake.Fail(http.StatusForbidden, "InvalidAccessKeyId")
	}
	for _, n := range needs(r) {
		i := p.allows(n)
		if i < 0 {
			g.denied = append(g.denied, who+": "+n.action+" "+n.resource)
			return s3fake.Fail(http.StatusForbidden, "AccessDenied")
		}
		g.used[who][grant{p.Statement[i].Sid, n.action}] = true
	}
	if g.spoil != nil {
		if failure := g.spoil(r); failure != nil {
			return s3fake.Action{Fail: failure}
		}
	}
	return s3fake.Action{}
}

// needs are the permissions that S3 asks of a request.
func needs(r *s3fake.Request) []need {
	object := r.Bucket + "/" + r.Key
	switch r.Op {
	case s3fake.GetObject, s3fake.HeadObject:
		return []need{{"s3:GetObject", object}}
	case s3fake.PutObject, s3fake.CreateUpload, s3fake.UploadPart, s3fake.CompleteUpload:
		all := []need{{"s3:PutObject", object}}
		if r.Header.Get("If-Match") != "" {
			all = append(all, need{"s3:GetObject", object})
		}
		return all
	case s3fake.AbortUpload:
		return []need{{"s3:AbortMultipartUpload", object}}
	case s3fake.ListObjects:
		return []need{{"s3:ListBucket", r.Bucket}}
	case s3fake.ListUploads:
		return []need{{"s3:ListBucketMultipartUploads", r.Bucket}}
	case s3fake.DeleteObjects:
		var batch struct {
			Object []struct{ Key string }
		}
		if xml.Unmarshal(r.Body, &batch) != nil {
			return []need{{"a body that can be read", object}}
		}
		var all []need
		for _, o := range batch.Object {
			all = append(all, need{"s3:DeleteObject", r.Bucket + "/" + o.Key})
		}
		return all
	}
	return []need{{"nothing that annals sends: " + string(r.Op), object}}
}

// grants returns what a process has used so far.
func (g *guard) grants(who string) map[grant]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[grant]bool)
	for grant := range g.used[who] {
		all[grant] = true
	}
	return all
}

// nothingDenied checks that the policies were enough for all that was done.
func (g *guard) nothingDenied(t *testing.T) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Empty(t, g.denied)
}
