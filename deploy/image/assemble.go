package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// A mapping says where on this machine the paths of the build stage are. An empty folder is "".
type mapping map[string]string

// assemble makes the image of a plan: one layer, whose times are the epoch, so that the same files give the same image.
func assemble(p *plan, where mapping) (v1.Image, error) {
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	for _, folder := range parents(p.files) {
		if err := out.WriteHeader(header(folder+"/", tar.TypeDir, 0o755, 0, 0)); err != nil {
			return nil, err
		}
	}
	for _, f := range p.files {
		source, ok := where[f.from]
		if !ok {
			return nil, fmt.Errorf("copy %s: it is not known where that is on this machine", f.from)
		}
		if err := write(out, f, source); err != nil {
			return nil, fmt.Errorf("copy %s: %w", f.from, err)
		}
	}
	if err := out.Close(); err != nil {
		return nil, err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil })
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, fmt.Errorf("make image: %w", err)
	}
	return mutate.ConfigFile(image, configFile(image, p.config))
}

// configFile is the image's with the settings of the plan.
func configFile(image v1.Image, c v1.Config) *v1.ConfigFile {
	config, err := image.ConfigFile()
	if err != nil {
		panic("image: the config of an image in memory: " + err.Error())
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Config = "linux", runtime.GOARCH, c
	return config
}

// parents returns the folders above the files, each once, the upper ones first.
func parents(files []file) (folders []string) {
	for _, f := range files {
		for dir := path.Dir(f.to); dir != "/"; dir = path.Dir(dir) {
			folders = append(folders, dir)
		}
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

func write(out *tar.Writer, f file, source string) error {
	if source == "" {
		return out.WriteHeader(header(f.to+"/", tar.TypeDir, 0o755, f.uid, 0))
	}
	body, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if err := out.WriteHeader(header(f.to, tar.TypeReg, info.Mode().Perm(), f.uid, int64(len(body)))); err != nil {
		return err
	}
	_, err = out.Write(body)
	return err
}

func header(name string, kind byte, mode fs.FileMode, uid int, size int64) *tar.Header {
	return &tar.Header{Name: strings.TrimPrefix(name, "/"), Typeflag: kind, Mode: int64(mode), Uid: uid, Gid: uid, Size: size, Format: tar.FormatPAX}
}
