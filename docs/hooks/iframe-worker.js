/* Makes search work in a page opened as a file, where browsers do not start workers: the search worker runs in a hidden
   frame instead. The worker script checks for the name IFrameWorker in its parent window. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = `<script src="${new URL(url, location.href)}"></script>`
      this.frame.onload = () => {
        const inner = this.frame.contentWindow
        inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
        inner.importScripts = (...urls) => Promise.all(urls.map(url => this.load(url)))
        this.waiting.splice(0).forEach(data => this.tell(data))
        this.ready = true
      }
      document.body.appendChild(this.frame)
    }
    load(url) {
      const script = this.frame.contentDocument.createElement("script")
      script.src = url
      this.frame.contentDocument.body.appendChild(script)
      return new Promise((done, failed) => { script.onload = done; script.onerror = failed })
    }
    tell(data) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }
    postMessage(data) {
      this.ready ? this.tell(data) : this.waiting.push(data)
    }
    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
