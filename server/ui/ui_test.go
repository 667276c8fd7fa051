package ui_test

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/server/ui"
)

// TestDocument reads the document as a browser would that holds it to its policy.
func TestDocument(t *testing.T) {
	body := string(ui.Document())
	headers := http.Header{}
	ui.SetHeaders(headers)
	policy := headers.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'")
	for _, name := range []string{"style", "script"} {
		elements := regexp.MustCompile(`(?s)<`+name+`[^>]*>(.*?)</`+name+`>`).FindAllStringSubmatch(body, -1)
		require.Len(t, elements, 1, name)
		sum := sha256.Sum256([]byte(elements[0][1]))
		require.Contains(t, policy, name+"-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	require.NotContains(t, body, "{{")
	require.NotContains(t, body, "\r", "a browser would hash something else")
	require.NotRegexp(t, `\sstyle=|\son\w+=`, body, "the policy refuses them")

	files, err := os.ReadDir("page")
	require.NoError(t, err)
	for _, f := range files {
		data, err := os.ReadFile("page/" + f.Name())
		require.NoError(t, err)
		if !strings.HasSuffix(f.Name(), ".html") {
			require.Contains(t, body, string(data), "%s is not in the page", f.Name())
		}
	}
}

// TestNothingBecomesMarkup refuses what could make code of data. The policy refuses it too, when it runs.
func TestNothingBecomesMarkup(t *testing.T) {
	for _, way := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc", "DOMParser", "eval(", "new Function", "localStorage", "document.cookie"} {
		require.NotContains(t, string(ui.Document()), way)
	}
}
