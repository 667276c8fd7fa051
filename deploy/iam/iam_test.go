// Package iam holds the policies that the processes of a log need in AWS, and the tests that they are enough, and not
// more. There is no other code in it.
package iam

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/deploy/internal/binary"
	"github.com/annalsdb/annals/objstore/s3/s3fake"
)

var program string

func TestMain(m *testing.M) { binary.Main(m, &program) }

// deadline bounds how long a test waits for what a process does of its own.
const deadline = 2 * time.Minute

// callActions are the actions that the calls of the S3 store need.
var callActions = map[string]string{
	"PutObject": "s3:PutObject", "CreateMultipartUpload": "s3:PutObject", "UploadPart": "s3:PutObject", "CompleteMultipartUpload": "s3:PutObject",
	"GetObject": "s3:GetObject", "HeadObject": "s3:GetObject",
	"DeleteObjects": "s3:DeleteObject", "AbortMultipartUpload": "s3:AbortMultipartUpload",
	"ListObjectsV2": "s3:ListBucket", "ListMultipartUploads": "s3:ListBucketMultipartUploads",
}

// The writer may do exactly what the code of the S3 store calls.
func TestWriterMayWhatTheCodeCalls(t *testing.T) {
	want := make(map[string]bool)
	for _, call := range clientCalls(t) {
		action, known := callActions[call]
		require.True(t, known, "objstore/s3 calls %s: say here which action it needs, and see which policies lack it", call)
		want[action] = true
	}
	got := make(map[string]bool)
	for g := range load(t, "writer.json", bucket, prefix).actions() {
		got[g.action] = true
	}
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)))
}

// clientCalls finds all X of s.client.X(...) in objstore/s3.
func clientCalls(t *testing.T) (calls []string) {
	t.Helper()
	folder := filepath.Join(binary.Root(), "objstore/s3")
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if method, ok := call.Fun.(*ast.SelectorExpr); ok {
				if of, ok := method.X.(*ast.SelectorExpr); ok && of.Sel.Name == "client" {
					calls = append(calls, method.Sel.Name)
				}
			}
			return true
		})
	}
	require.NotEmpty(t, calls)
	return calls
}

// A replica that may do more than read is no replica.
func TestReplicaMayOnlyRead(t *testing.T) {
	got := load(t, "replica.json", bucket, prefix).actions()
	require.Equal(t, map[grant]bool{{"Objects", "s3:GetObject"}: true, {"Names", "s3:ListBucket"}: true}, got)
}

// No policy reaches beyond its prefix, but for the names in the bucket.
func TestNothingBeyondThePrefix(t *testing.T) {
	for _, file := range []string{"writer.json", "replica.json", "compactor.json"} {
		p := load(t, file, bucket, prefix)
		for g := range p.actions() {
			for _, resource := range []string{bucket + "/logs/onetwo/LOG", bucket + "/LOG", "another/" + prefix + "/LOG", "another"} {
				require.Negative(t, p.allows(need{g.action, resource}), "%s: %s %s", file, g.action, resource)
			}
		}
	}
	compactor := load(t, "compactor.json", bucket, prefix)
	for _, name := range []string{"LOG", "trees/00000000/wal/00000000000000000001/00000000000000000001", "trees/00000000/sst/0000000001/w1.sst", "trees/00000000/state/w1"} {
		for _, action := range []string{"s3:PutObject", "s3:DeleteObject"} {
			require.Negative(t, compactor.allows(need{action, bucket + "/" + prefix + "/" + name}), name)
		}
	}
}

// A writer, a replica and a compactor do all their work under their policies, and use each grant in them.
func TestPoliciesAreEnough(t *testing.T) {
	g := newGuard(t)
	g.spoil = failUploads()
	everyone := []string{"writer", "replica", "compactor"}
	environ := make(map[string][]string)
	for _, who := range everyone {
		environ[who] = g.environ(t, who)
	}
	writer := binary.Start(t, program, environ["writer"],
		"--compaction", "off", "--segment-bytes", "40MiB", "--memtable-bytes", "20MiB", "--gc-interval", "1s")
	replica := binary.Start(t, program, environ["replica"], "--replica")
	compact := exec.Command(program, "compact", "--segment-bytes", "40MiB")
	compact.Env = environ["compactor"]
	var log bytes.Buffer
	compact.Stdout, compact.Stderr = &log, &log
	require.NoError(t, compact.Start())
	t.Cleanup(func() { _ = compact.Process.Kill(); t.Logf("%s", &log) })

	for range loadAppends {
		writer.Post(t, "/api/v1/log/append", strings.NewReader(randomAppend()))
	}
	for _, who := range everyone {
		want := load(t, who+".json", bucket, prefix).actions()
		if !assert.Eventually(t, func() bool { return maps.Equal(want, g.grants(who)) }, deadline, 50*time.Millisecond) {
			t.Fatalf("%s may do more than it uses; used: %v", who, g.grants(who))
		}
	}
	scanned := replica.Get(t, fmt.Sprintf("/api/v1/log/scan?key=key&start_seq=%d", loadAppends-1))
	require.Contains(t, string(scanned), fmt.Sprintf(`"sequence":%d`, loadAppends-1))

	require.NoError(t, compact.Process.Signal(os.Interrupt))
	require.NoError(t, compact.Wait(), "%s", &log)
	replica.Stop(t)
	writer.Stop(t)
	g.nothingDenied(t)
}

// The load fills two segments, of two runs each, with tables that are uploaded in parts.
const (
	loadAppends = 12
	loadBytes   = 8 << 20
)

// randomAppend is the body of an append of one record that does not get smaller.
func randomAppend() string {
	value := make([]byte, loadBytes)
	_, _ = rand.Read(value) // never fails
	return `{"records":[{"key":"a2V5","value":"` + base64.StdEncoding.EncodeToString(value) + `"}]}`
}

// failUploads fails what makes a process clean up behind itself: each one's first part of an upload, and the compactor's
// indexes until it has deleted what it made in vain.
func failUploads() func(*s3fake.Request) *s3fake.Error {
	failed, cleaned := make(map[bool]bool), false
	return func(r *s3fake.Request) *s3fake.Error {
		compactors := strings.Contains(r.Key, "/c")
		switch {
		case r.Op == s3fake.DeleteObjects && bytes.Contains(r.Body, []byte("/seg/c")):
			cleaned = true
			return nil
		case r.Op == s3fake.UploadPart && !failed[compactors]:
			failed[compactors] = true
		case r.Op == s3fake.PutObject && compactors && strings.Contains(r.Key, "/seg/") && !cleaned:
		default:
			return nil
		}
		return &s3fake.Error{Status: http.StatusBadRequest, Code: "InvalidRequest", Message: "as the test demands"}
	}
}
