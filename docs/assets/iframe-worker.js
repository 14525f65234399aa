/* Browsers start no worker from a file. There, the search runs in a hidden frame that behaves as one. */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const room = this.frame.contentWindow
      room.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = source => new Promise((done, fail) => {
        const script = room.document.createElement("script")
        Object.assign(script, { src: source, onload: done, onerror: fail })
        room.document.body.append(script)
      })
      room.importScripts = (...sources) => sources.reduce((before, each) => before.then(() => load(each)), Promise.resolve())
      this.ready = load(url)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
