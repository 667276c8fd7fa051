package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A command that only looks makes no store where there is none.
func TestOpenExistingCreatesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nothing", "here")
	u, err := parseStoreURL("file:" + path)
	require.NoError(t, err)
	_, err = u.openExisting(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = os.Stat(filepath.Dir(path))
	require.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, os.MkdirAll(path, 0o755))
	_, err = u.openExisting(t.Context())
	require.NoError(t, err)
}

func TestStoreHoldsFolder(t *testing.T) {
	u, err := parseStoreURL("file:data/log")
	require.NoError(t, err)
	for folder, want := range map[string]bool{
		"data/log": true, "data/log/cache": true, "data/log/../log/x": true,
		"data": false, "data/log-cache": false, "": false, "cache": false,
	} {
		require.Equal(t, want, u.holds(folder), folder)
	}
	m, err := parseStoreURL("mem:")
	require.NoError(t, err)
	require.False(t, m.holds("data"))
}

func TestStoreHoldsFolderBehindALink(t *testing.T) {
	root := t.TempDir()
	store, link := filepath.Join(root, "store"), filepath.Join(root, "link")
	require.NoError(t, os.Mkdir(store, 0o755))
	require.NoError(t, os.Symlink(store, link))
	u, err := parseStoreURL("file:" + store)
	require.NoError(t, err)
	require.True(t, u.holds(filepath.Join(link, "not", "yet", "there")))
	require.False(t, u.holds(filepath.Join(root, "not", "yet", "there")))
}

// Commands that look at a log which is there refuse the store of which that cannot be.
func TestNothingIsInMemory(t *testing.T) {
	for _, command := range []string{"check", "inspect", "compact"} {
		status, stdout, stderr := runIn(command, "--store", "mem:")
		require.Equal(t, exitUsage, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "annals "+command+": --store: nothing can be in mem:, which is of one process alone; want file:PATH or s3://")
		status, _, stderr = runIn(command, "--store", "nonsense")
		require.Equal(t, exitUsage, status)
		require.Contains(t, stderr, "--store: want file:PATH or s3://")
	}
}
