package aggregated

import "time"

const shutdownDelay = 3 * time.Second
