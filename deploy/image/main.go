package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/annalsdb/annals/deploy/internal/binary"
)

func main() {
	output := flag.String("o", "annals.tar", "archive to write, for docker load")
	tag := flag.String("tag", "annals:latest", "name of the image in it")
	authorities := flag.String("ca", "/etc/ssl/certs/ca-certificates.crt", "the authorities of TLS that the image trusts, PEM")
	flag.Parse()
	if err := run(*output, *tag, *authorities); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(output, tag, authorities string) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "annals-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	program := filepath.Join(folder, "annals")
	if err := binary.Build(program, "linux"); err != nil {
		return err
	}
	image, err := build(filepath.Join(binary.Root(), "deploy/Dockerfile"), program, authorities)
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(output, ref, image); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	return report(output, image)
}

// build makes the image that a Dockerfile describes of a program that is built.
func build(dockerfile, program, authorities string) (v1.Image, error) {
	in, err := os.Open(dockerfile)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	stages, err := parse(in)
	if err != nil {
		return nil, err
	}
	p, err := planOf(stages)
	if err != nil {
		return nil, err
	}
	return assemble(p, mapping{
		"/etc/ssl/certs/ca-certificates.crt": authorities,
		"/out/annals":                        program,
		"/out/data":                          "",
	})
}

// report prints the sizes that a registry and a node would see.
func report(output string, image v1.Image) error {
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	compressed, err := layers[0].Size()
	if err != nil {
		return err
	}
	info, err := os.Stat(output)
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s: %.1f MB in a registry, %.1f MB as an archive, %s\n", output, float64(compressed)/1e6, float64(info.Size())/1e6, digest)
	return nil
}
