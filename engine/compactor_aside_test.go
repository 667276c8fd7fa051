package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/manifest"
)

// Groups that are too large for one index are left alone for as long as the compactor has its
// epoch, in whatever job they are planned; other jobs go on.
func TestTooLargeGroupsAreLeftAlone(t *testing.T) {
	job := func(last ...uint32) compaction.Job {
		j := compaction.Job{Kind: compaction.Group}
		for _, id := range last {
			j.Groups = append(j.Groups, &manifest.Group{FirstSegment: id, LastSegment: id})
		}
		j.First = last[0]
		return j
	}
	aside := newSetAside()
	require.False(t, aside.has(job(1, 2, 3), 0))
	aside.refuse(job(1, 2, 3))
	const late = 1000 * time.Hour
	require.True(t, aside.has(job(1, 2, 3), late))
	require.True(t, aside.has(job(3, 4, 5), late), "one of them is enough")
	require.False(t, aside.has(job(4, 5, 6), late))
	require.False(t, aside.has(compaction.Job{Kind: compaction.Merge, First: 1, Last: 9}, late))
	single := compaction.Job{Kind: compaction.Group, First: 7, Segments: []*manifest.Segment{{Id: 7, LastId: 8}}}
	require.False(t, aside.has(single, late))
	aside.refuse(single)
	require.True(t, aside.has(single, late))

	aside.failed[4] = jobFailure{times: 1, until: time.Minute}
	require.True(t, aside.has(job(4, 5, 6), time.Second))
	require.False(t, aside.has(job(4, 5, 6), time.Minute))
}
