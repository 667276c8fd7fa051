package ui_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/annalsdb/annals/server"
)

func shot(b *tab, name string) {
	buf := run(b, chromedp.CaptureScreenshot())
	_ = os.WriteFile("/tmp/p7/rdep-w/"+name+".png", buf, 0o600)
}

func TestZZNest(t *testing.T) {
	s := serve(t, server.Options{})
	v := strings.Repeat("[", 10000) + strings.Repeat("]", 10000)
	for range 25 {
		s.append("k", v)
	}
	b := newTab(t, s.origin())
	began := time.Now()
	b.open("#key=k")
	b.waitText("stream-note", "25 records")
	fmt.Println("took", time.Since(began))
	fmt.Println("heap", eval[float64](b, "performance.memory.usedJSHeapSize")/1e6)
	for range 3 {
		began = time.Now()
		eval[any](b, "document.querySelectorAll('#records li')[0].querySelector('summary').click()")
		fmt.Println(eval[int](b, "document.querySelectorAll('#records li')[0].querySelector('details pre').textContent.length"))
		fmt.Println("open", time.Since(began))
		fmt.Println("heap", eval[float64](b, "performance.memory.usedJSHeapSize")/1e6)
	}
}

func TestZZLoad(t *testing.T) {
	s := serve(t, server.Options{})
	for i := range 5 {
		var pairs []string
		for j := range 1000 {
			pairs = append(pairs, fmt.Sprintf("user/%04d", i*1000+j), "v")
		}
		s.append(pairs...)
	}
	for range 10 {
		s.appendMany("big", 10000)
	}
	b := newTab(t, s.origin())
	b.open("#key=big")
	b.waitText("stream-note", "25 records")
	b.click("#live")
	b.waitText("stream-note", "Live")
	stop := time.Now().Add(12 * time.Second)
	n := 0
	for time.Now().Before(stop) {
		s.append("big", fmt.Sprint("n ", n), "big", "<b>x</b>", "big", "\x00\xff", "big", `{"a":[1,2]}`, "big", strings.Repeat("y", 500))
		n += 5
		time.Sleep(10 * time.Millisecond)
		if n%1500 == 0 {
			began := time.Now()
			eval[int](b, "1")
			fmt.Println(n, "resp", time.Since(began), "heap", eval[float64](b, "performance.memory.usedJSHeapSize")/1e6, "li", eval[int](b, "document.querySelectorAll('#records li').length"), "tile", eval[string](b, "document.getElementById('tiles').innerText"))
		}
	}
	time.Sleep(time.Second)
	seqs := sequences(b)
	fmt.Println("last", seqs[0], "want", 5000+100000+n-1, "len", len(seqs))
	for i := 1; i < len(seqs); i++ {
		if seqs[i-1] != seqs[i]+1 {
			t.Fatal("hole", seqs[i-1], seqs[i])
		}
	}
	shot(b, "load")
	b.dark(true)
	run(b, chromedp.EmulateViewport(320, 700))
	time.Sleep(300 * time.Millisecond)
	shot(b, "phone")
	fmt.Println("overflow", eval[int](b, "document.documentElement.scrollWidth"))
	eval[any](b, "document.getElementById('stream').scrollIntoView()")
	shot(b, "phone2")
	eval[any](b, "document.getElementById('keys').scrollIntoView()")
	shot(b, "phone3")
}
