package objstore

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Names are labels of metrics: they must differ, and stay.
func TestAnswerNames(t *testing.T) {
	var names []string
	for a := range Answer(NumAnswers) {
		names = append(names, a.String())
	}
	require.Equal(t, []string{"ok", "refused", "throttled", "failed", "none"}, names)
	require.Equal(t, "Answer(5)", Answer(NumAnswers).String())
}
